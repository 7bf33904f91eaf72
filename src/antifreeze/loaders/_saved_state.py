"""The position of a ``DataLoader`` as plain numbers and texts, and whether another loader can resume from it."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch.distributed

from antifreeze.core import StateMismatch, check_kind, compare, forms, get_logger, settle
from antifreeze.loaders._generators import Drawn, from_plain, to_plain
from antifreeze.loaders._indices import Mark
from antifreeze.loaders._pad_ranks import take_part
from antifreeze.loaders._torch_settings import (
    TorchLoader,
    chain_of,
    index_sampler,
    is_iterable,
    is_known,
    length_of,
    names_of,
)
from antifreeze.pool import IndexSteps, ShardProgress
from antifreeze.worker import ShardState, has_state, opened_state, sealed_state

logger = get_logger()

KIND = "DataLoader"
VERSION = 2
_FIRST_VERSION = 2
"""Before it, generators were kept as a seed and a number of draws, from a copy that only the loader drew from."""
_SIZES = ("batch_size", "sampler.num_replicas")
_LOST = "samples of this epoch may come twice or not at all"
_NAMES_OF_ACCELERATE = {"rank": "process_index", "num_replicas": "num_processes"}
_ONLY_WITHIN = ("num_workers", "rank", "world_size")


class IndexPosition(NamedTuple):
    """A position in an epoch of a map-style dataset."""

    steps: IndexSteps = IndexSteps()
    mark: Mark = Mark()
    sampler_epoch: Any = None
    """What the sampler got by ``set_epoch``, if it has that."""
    calls: int = 0
    """How often the sampler was asked: it runs ahead of what is delivered."""


class ShardPosition(NamedTuple):
    """A position in an epoch of an iterable dataset."""

    shares: tuple[ShardProgress, ...] = ()
    batches: int = 0
    """How many batches were delivered."""
    own: int | None = None
    """How many batches this rank has, once it repeats them because other ranks have more."""

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was delivered."""
        return self.batches == 0


Place = IndexPosition | ShardPosition


class Loaded(NamedTuple):
    """A state that the next epoch begins with."""

    state: Mapping[str, Any]
    epoch: int
    place: Place
    random: Drawn
    strict: bool
    is_alike: bool
    """Whether the sampler should give this rank the indices that it gave before."""


def check_indices(names: str, step: int, *, strict: bool) -> None:
    """Raise StateMismatch because a sampler has given other indices than before, or warn."""
    message = (
        f"the sampler ({names}) does not give the same indices again: those of the first {step} batches are not the "
        "ones that were delivered before the state was saved"
    )
    if strict:
        raise StateMismatch(
            message,
            hint="seed the sampler (generator=, set_epoch()), or give it state_dict() and load_state_dict(); "
            "load_state_dict(state, strict=False) resumes after as many batches, whatever they are",
        )
    logger.warning("antifreeze: %s. What is lost: %s", message, _LOST)


def facts_of(loader: TorchLoader) -> dict[str, Any]:
    """Return what must be the same where a state is saved and where it is loaded."""
    facts: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    facts["generator"] = loader.generator is not None
    if is_iterable(loader):
        facts |= {"dataset": "iterable", "num_workers": max(1, loader.num_workers)}
        if take_part(torch.distributed):
            facts |= {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()}
        return facts
    sampler = loader.sampler
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = loader.batch_sampler
        facts["batch_size"] = _plain(getattr(sampler, "batch_size", None))
    inner = chain_of(sampler)
    facts |= {"dataset": "map", "len(dataset)": length_of(loader.dataset)}
    facts["sampler"] = names_of(sampler)
    for name in ("seed", "shuffle", "num_replicas"):
        value = _found(inner, name)
        if value is not None:
            facts[f"sampler.{name}"] = value
    if "sampler.num_replicas" not in facts:
        facts["len(sampler)"] = length_of(sampler)
    return facts


def epoch_of(loader: TorchLoader) -> Any:
    """Return the epoch of the sampler, if it has ``set_epoch``."""
    return next((_plain(getattr(s, "epoch", None)) for s in _samplers(loader) if hasattr(s, "set_epoch")), None)


def _rank_of(loader: TorchLoader) -> Any:
    """Return the rank that the sampler gives indices for, if it says so."""
    return _found(_samplers(loader), "rank")


def _found(samplers: list[Any], name: str) -> Any:
    """Return what the first sampler that has something of this name has there."""
    names = (name, _NAMES_OF_ACCELERATE.get(name, name))
    return next((_plain(getattr(s, n)) for n in names for s in samplers if hasattr(s, n)), None)


def _samplers(loader: TorchLoader) -> list[Any]:
    return [*chain_of(loader.batch_sampler), *chain_of(loader.sampler)]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) else None


# -- out ------------------------------------------------------------------------------------------------------------


def to_state(epoch: int, place: Place, random: Drawn, loader: TorchLoader) -> dict[str, Any]:
    """Return a position as plain numbers and texts, and states of the user's objects as these gave them."""
    state: dict[str, Any] = {"version": VERSION, "kind": KIND, "epoch": epoch, "random": to_plain(random)}
    state["loader"] = facts_of(loader)
    return state | (_index_state(place, loader) if isinstance(place, IndexPosition) else _share_state(place))


def _index_state(place: IndexPosition, loader: TorchLoader) -> dict[str, Any]:
    steps, mark = place.steps, place.mark
    state: dict[str, Any] = {"step": steps.first, "indices": mark.fingerprint}
    if place.calls != steps.first:
        state["calls"] = place.calls
    if steps.until != steps.first:
        state |= {"until": steps.until, "missing": _runs_of(steps.missing)}
    optional = {"rank": _rank_of(loader), "sampler_epoch": place.sampler_epoch}
    state |= {name: value for name, value in optional.items() if value is not None}
    if mark.state is not None:
        state |= {"sampler_state": opened_state(mark.state), "sampler_at_end": mark.is_end}
    if has_state(loader.dataset):
        state["dataset_state"] = loader.dataset.state_dict()
    return state


def _runs_of(missing: tuple[int, ...]) -> list[list[int]]:
    """Return steps as pairs: the first of a run, and how many."""
    runs: list[list[int]] = []
    for step in missing:
        if runs and step == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([step, 1])
    return runs


def _share_state(place: ShardPosition) -> dict[str, Any]:
    state: dict[str, Any] = {"step": place.batches}
    if place.is_beginning and all(share.stand is None for share in place.shares):
        return state
    state["shares"] = [[share.number, share.fingerprint, int(share.is_over)] for share in place.shares]
    if place.own is not None:
        state["own"] = place.own
    stands = [share.stand for share in place.shares]
    if any(stand is not None for stand in stands):
        state["share_stands"] = [stand and [stand.after, stand.fingerprint, *[1] * stand.is_end] for stand in stands]
        state["share_states"] = [stand and opened_state(stand.state) for stand in stands]
    return state


# -- in -------------------------------------------------------------------------------------------------------------


_MAX_STEPS = 1 << 48
_MAX_MISSING = 1 << 16
"""How many steps may be missing: those that workers were at when the state was saved, out of order."""
_MAX_AHEAD = 1 << 16
"""How far a sampler may have been asked beyond what was delivered."""
_MAX_SHARES = 1 << 14
_MAX_TEXT = 1 << 17
_MAX_LENGTHS = 16
_fingerprint = forms.whole(-1, (1 << 32) - 1)  # a CRC; -1 for steps that the sampler no longer had
_steps = forms.whole(0, _MAX_STEPS)
_user_states = forms.fields({}, {"sampler": forms.anything, "iterator": forms.anything, "dataset": forms.anything})
_generator_states = forms.fields({}, others=forms.text(_MAX_TEXT))
_RANDOM = forms.fields(
    {
        "seed": forms.maybe(forms.whole(-(1 << 63), (1 << 64) - 1)),
        "resets": forms.whole(0, _MAX_STEPS),
        "persistent": forms.flag,
    },
    {"began": _generator_states, "asked": _generator_states, "now": _generator_states},
)
_EVERY = {
    "version": forms.whole(_FIRST_VERSION, VERSION),
    "kind": forms.text(among=(KIND,)),
    "epoch": _steps,
    "random": _RANDOM,
    "loader": forms.fields({"dataset": forms.text(among=("map", "iterable"))}, others=forms.fact),
    "step": _steps,
}
_check_indices = forms.fields(
    _EVERY | {"indices": _fingerprint},
    {
        "calls": _steps,
        "until": _steps,
        "missing": forms.items(forms.row(_steps, forms.whole(1, _MAX_MISSING)), most=_MAX_MISSING),
        "rank": forms.fact,
        "sampler_epoch": forms.fact,
        "sampler_state": _user_states,
        "sampler_at_end": forms.flag,
        "dataset_state": forms.anything,
    },
)
_check_shares = forms.fields(
    _EVERY,
    {
        "shares": forms.items(forms.row(_steps, forms.maybe(_fingerprint), forms.whole(0, 1)), most=_MAX_SHARES),
        "own": forms.maybe(_steps),
        "share_stands": forms.items(
            forms.maybe(forms.row(_steps, _fingerprint, forms.whole(1, 1), least=2)), most=_MAX_SHARES
        ),
        "share_states": forms.items(forms.maybe(_user_states), most=_MAX_SHARES),
        "ended": forms.flag,
        "dataset_state": forms.anything,
    },
)


def _check_form(state: Any) -> None:
    """Raise StateMismatch unless a state has the form of one, whatever loader it is for."""
    check_kind(state, kind=KIND, version=VERSION)
    if state["version"] < _FIRST_VERSION:
        raise StateMismatch(
            f"the state has version {forms.shown(state['version'])}, this antifreeze knows versions from "
            f"{_FIRST_VERSION} on",
            hint="it was saved by an older antifreeze, whose epochs had another order; begin the epoch again",
            differences={"version": (forms.shown(state["version"]), VERSION)},
        )
    saved = state.get("loader")
    is_iterable = isinstance(saved, Mapping) and saved.get("dataset") == "iterable"
    (_check_shares if is_iterable else _check_indices)(state, "state")
    if (state["step"] or state.get("until")) and "began" not in state["random"]:
        raise forms.unexpected("state['random']", "an entry 'began' in an epoch that has begun", state["random"])


@contextlib.contextmanager
def _users_part(use: str) -> Iterator[None]:
    """Raise StateMismatch if what user code has saved in a state cannot be used."""
    try:
        yield
    except Exception as error:  # border: it may be anything, nested without end say
        raise StateMismatch(
            f"the state is damaged: what the dataset or sampler has saved in it cannot be {use} "
            f"({type(error).__name__})",
            hint=forms.HINT,
        ) from error


def from_state(state: Any, loader: TorchLoader, *, strict: bool) -> Loaded:
    """Return what the next epoch begins with; raise StateMismatch if the state does not fit, or warn."""
    _check_form(state)
    with _users_part("copied"):
        state = copy.deepcopy(dict(state))
    saved = dict(state["loader"])
    place = _share_place(state, saved) if saved["dataset"] == "iterable" else _index_place(state)
    try:
        random = from_plain(state["random"])
    except ValueError as error:
        raise StateMismatch(f"the state is damaged: state['random']: {error}", hint=forms.HINT) from error
    loaded = Loaded(state, state["epoch"], place, random, strict, True)
    here = facts_of(loader)
    if saved["dataset"] != here["dataset"]:
        settle(compare(saved, {"dataset": here["dataset"]}), strict=strict, lost="the epoch starts over")
        return loaded._replace(place=ShardPosition() if here["dataset"] == "iterable" else IndexPosition())
    if isinstance(place, ShardPosition):
        return loaded._replace(place=_fitted_shares(place, state, here, strict=strict))
    ranks = state.get("rank"), _rank_of(loader)
    same = all(saved.get(name) == here.get(name) for name in _SIZES) and ranks[0] == ranks[1]
    differences = compare(saved, here)
    if place.steps.missing and not same:
        differences["rank"] = ranks  # each has overtaken other batches
    place = _fitted_steps(place, saved, here, differences, strict=strict)
    _check_left(place, loader)
    return loaded._replace(place=place, is_alike=same)


def _check_left(place: IndexPosition, loader: TorchLoader) -> None:
    """Raise StateMismatch if a state has more steps than the sampler: nothing would be left, and nobody would know."""
    sampler = index_sampler(loader)
    length = length_of(sampler)
    if length is None:
        return
    if place.mark.is_end and place.steps.first < length:
        logger.warning(
            "antifreeze: the state says that the sampler has ended after %d of %d steps; the next epoch begins",
            place.steps.first,
            length,
        )
    # A sampler that is user code may have more steps than it says.
    most = length if all(is_known(s) for s in chain_of(sampler)) else _MAX_LENGTHS * length + _MAX_AHEAD
    for name, value, bound in (
        ("step", place.steps.first, most),
        ("until", place.steps.until, most),
        ("calls", place.calls, most + 1),
    ):
        if value > bound:
            raise forms.unexpected(f"state[{name!r}]", f"an integer from 0 to {bound}", value)


def _index_place(state: Mapping[str, Any]) -> IndexPosition:
    first = state["step"]
    until = state.get("until", first)
    if until < first:
        raise forms.unexpected("state['until']", f"an integer >= {first}", until)
    calls = state.get("calls", first)
    if calls > until + _MAX_AHEAD:
        raise forms.unexpected("state['calls']", f"an integer from 0 to {until + _MAX_AHEAD}", calls)
    own = state.get("sampler_state")
    mark = Mark(state["indices"], None if own is None else _sealed(own), bool(state.get("sampler_at_end")))
    steps = IndexSteps(first, until, _missing(state.get("missing", []), first, until))
    return IndexPosition(steps, mark, state.get("sampler_epoch"), calls)


def _missing(runs: list[Any], first: int, until: int) -> tuple[int, ...]:
    """Return the steps of runs, each a first step and how many; they must be in order and between two bounds."""
    at, total = first, 0
    for number, (start, count) in enumerate(runs):
        total += count
        if not at <= start <= until - count:
            raise forms.unexpected(f"state['missing'][{number}]", f"steps from {at} to {until}", [start, count])
        at = start + count
    if total > _MAX_MISSING:
        raise forms.unexpected("state['missing']", f"at most {_MAX_MISSING} steps", total)
    return tuple(itertools.chain(*(range(start, start + count) for start, count in runs)))


def _share_place(state: Mapping[str, Any], facts: Mapping[str, Any]) -> ShardPosition:
    shares, num_workers = state.get("shares", []), facts.get("num_workers")
    if len(shares) != num_workers and (shares or state["step"]):
        raise forms.unexpected("state['shares']", f"one entry for each of {num_workers} workers", shares)
    nothing = [None] * len(shares)
    stands, users = state.get("share_stands", nothing), state.get("share_states", nothing)
    for name, found in (("share_stands", stands), ("share_states", users)):
        if len(found) != len(shares):
            raise forms.unexpected(f"state[{name!r}]", f"a list of {len(shares)} entries", found)
    reached = []
    for at, (share, stand, user) in enumerate(zip(shares, stands, users, strict=True)):
        if (stand is None) != (user is None):
            raise forms.unexpected(f"state['share_states'][{at}]", "a state for each entry of share_stands", user)
        if stand is not None and stand[0] > share[0]:
            raise forms.unexpected(f"state['share_stands'][{at}][0]", f"an integer from 0 to {share[0]}", stand[0])
        after = None if stand is None else ShardState(stand[0], stand[1], _sealed(user), len(stand) > 2)
        reached.append(ShardProgress(share[0], share[1], after, bool(share[2])))
    return ShardPosition(tuple(reached), state["step"], state.get("own"))


def _sealed(state: dict[str, Any]) -> bytes:
    with _users_part("sent to a worker"):
        return sealed_state(state)


def _fitted_steps(
    place: IndexPosition, saved: dict[str, Any], here: dict[str, Any], differences: dict[str, Any], *, strict: bool
) -> IndexPosition:
    """Return the position for this loader: of another size, if need be, so that as many samples are over."""
    before, now = _global_batch(saved), _global_batch(here)
    lost, repeated, first = _LOST, 0, place.steps.first
    if before and now and before != now:
        first, repeated = divmod(first * before, now)
        _steps(first, "state['step'] in batches of this size")
    elif before == now and before is not None:
        # A step of all ranks together takes the same samples.
        differences = {name: pair for name, pair in differences.items() if name not in _SIZES}
    if differences.keys() <= set(_SIZES):
        lost = f"steps are made of other samples than they would have been, and {repeated} samples come again"
    settle(differences, strict=strict, lost=lost)
    if all(saved.get(name) == here.get(name) for name in _SIZES):
        return place
    return IndexPosition(IndexSteps(first, first), Mark(), place.sampler_epoch)


def _global_batch(facts: Mapping[str, Any]) -> int | None:
    size, ranks = facts.get("batch_size"), facts.get("sampler.num_replicas", 1)
    return size * ranks if _is_size(size) and _is_size(ranks) else None


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MAX_STEPS


def _fitted_shares(
    place: ShardPosition, state: Mapping[str, Any], here: dict[str, Any], *, strict: bool
) -> ShardPosition:
    """Return the position for this loader. Within an epoch, another number of shards has to start over."""
    saved = dict(state["loader"])
    if place.is_beginning or state.get("ended"):
        others = compare(saved, {name: here[name] for name in _ONLY_WITHIN if name in here})
        if others:
            place = _for_others(place, state, others, here["num_workers"])
        here = {name: value for name, value in here.items() if name not in _ONLY_WITHIN}
    differences = compare(saved, here)
    lost = _LOST
    starts_over = not differences.keys().isdisjoint(_ONLY_WITHIN)
    if starts_over:
        lost = f"the epoch starts over, so that its first {place.batches} batches come again"
    settle(differences, strict=strict, lost=lost, hint="" if not starts_over else _ONE_FOR_EACH)
    if starts_over:
        return ShardPosition()
    if strict:
        return place
    size, wanted = (facts["batch_size"] if _is_size(facts.get("batch_size")) else 1 for facts in (saved, here))
    return place._replace(shares=tuple(_resized(share, size, wanted) for share in place.shares))


def _for_others(
    place: ShardPosition, state: Mapping[str, Any], others: Mapping[str, Any], num_workers: int
) -> ShardPosition:
    """Return the position where an epoch begins or has ended, for other shards."""
    if "dataset_state" not in state and any(user and "dataset" in user for user in state.get("share_states", [])):
        logger.warning(
            "antifreeze: each shard of the dataset has its state, which does not fit another %s. The next "
            "epoch is whole, but begins with the dataset as this loader has it",
            " or ".join(others),
        )
    return place._replace(shares=() if place.is_beginning else (ShardProgress(is_over=True),) * num_workers)


def _resized(share: ShardProgress, size: int, wanted: int) -> ShardProgress:
    """Return how far a shard has come, counted in batches of another size."""
    stand = share.stand and share.stand._replace(after=share.stand.after * size // wanted)
    return share._replace(number=share.number * size // wanted, fingerprint=None, stand=stand)


_ONE_FOR_EACH = (
    "an iterable dataset is split among workers and ranks: resume with as many of them, each rank from its own state. "
    "load_state_dict(state, strict=False) starts the epoch over"
)
