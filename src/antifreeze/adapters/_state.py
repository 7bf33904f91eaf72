"""Where a ``DataLoader`` stands, as plain numbers and texts, and whether another one can go on from there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch.distributed
from torch.utils.data import IterableDataset

from antifreeze.adapters._even_ranks import take_part
from antifreeze.adapters._indices import Mark, runs_of
from antifreeze.adapters._random import Drawn, from_plain, to_plain
from antifreeze.adapters._samplers import chain_of, length_of, names_of
from antifreeze.child import Stand, has_state, opened_state, sealed_state
from antifreeze.core import StateMismatch, check_kind, compare, get_logger, settle
from antifreeze.crew import Reached, Steps

logger = get_logger()

KIND = "DataLoader"
VERSION = 2
_FIRST_VERSION = 2
"""Before it, generators were kept as a seed and a number of draws, from a copy that only the loader drew from."""
_SIZES = ("batch_size", "sampler.num_replicas")
_LOST = "samples of this epoch may come twice or not at all"
_NAMES_OF_ACCELERATE = {"rank": "process_index", "num_replicas": "num_processes"}
_ONLY_WITHIN = ("num_workers", "rank", "world_size")


class IndexPlace(NamedTuple):
    """A place in an epoch of a map-style dataset."""

    steps: Steps = Steps()
    mark: Mark = Mark()
    sampler_epoch: Any = None
    """What the sampler was told by ``set_epoch``, if it can be told."""
    calls: int = 0
    """How often the sampler was asked: it runs ahead of what is delivered."""

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was delivered."""
        return self.steps.until == 0


class SharePlace(NamedTuple):
    """A place in an epoch of an iterable dataset."""

    shares: tuple[Reached, ...] = ()
    batches: int = 0
    """How many batches were delivered."""
    own: int | None = None
    """How many batches this rank has of its own, once it repeats them because other ranks have more."""

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was delivered."""
        return self.batches == 0


Place = IndexPlace | SharePlace


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
            "load_state_dict(state, strict=False) goes on after as many batches, whatever they are",
        )
    logger.warning("antifreeze: %s. What is lost: %s", message, _LOST)


def facts_of(loader: Any) -> dict[str, Any]:
    """Return what must be the same where a state is saved and where it is loaded."""
    facts: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    facts["generator"] = loader.generator is not None
    if isinstance(loader.dataset, IterableDataset):
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


def epoch_of(loader: Any) -> Any:
    """Return the epoch that the sampler was told, if it can be told."""
    return next((_plain(getattr(s, "epoch", None)) for s in _samplers(loader) if hasattr(s, "set_epoch")), None)


def _rank_of(loader: Any) -> Any:
    """Return the rank that the sampler gives indices for, if it says so."""
    return _found(_samplers(loader), "rank")


def _found(samplers: list[Any], name: str) -> Any:
    """Return what the first sampler that has something of this name has there."""
    names = (name, _NAMES_OF_ACCELERATE.get(name, name))
    return next((_plain(getattr(s, n)) for n in names for s in samplers if hasattr(s, n)), None)


def _samplers(loader: Any) -> list[Any]:
    return [*chain_of(loader.batch_sampler), *chain_of(loader.sampler)]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | str) else None


# -- out ------------------------------------------------------------------------------------------------------------


def to_state(epoch: int, place: Place, random: Drawn, loader: Any) -> dict[str, Any]:
    """Return a place as plain numbers and texts, and states of the user's objects as these gave them."""
    state: dict[str, Any] = {"version": VERSION, "kind": KIND, "epoch": epoch, "random": to_plain(random)}
    state["loader"] = facts_of(loader)
    return state | (_index_state(place, loader) if isinstance(place, IndexPlace) else _share_state(place))


def _index_state(place: IndexPlace, loader: Any) -> dict[str, Any]:
    steps, mark = place.steps, place.mark
    state: dict[str, Any] = {"step": steps.first, "indices": mark.fingerprint}
    if place.calls != steps.first:
        state["calls"] = place.calls
    if steps.until != steps.first:
        state |= {"until": steps.until, "missing": runs_of(steps)}
    optional = {"rank": _rank_of(loader), "sampler_epoch": place.sampler_epoch}
    state |= {name: value for name, value in optional.items() if value is not None}
    if mark.state is not None:
        state |= {"sampler_state": opened_state(mark.state), "sampler_at_end": mark.is_end}
    if has_state(loader.dataset):
        state["dataset_state"] = loader.dataset.state_dict()
    return state


def _share_state(place: SharePlace) -> dict[str, Any]:
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


def from_state(state: Any, loader: Any, *, strict: bool) -> Loaded:
    """Return what the next epoch begins with; raise StateMismatch if the state does not fit, or warn."""
    check_kind(state, kind=KIND, version=VERSION)
    if state["version"] < _FIRST_VERSION:
        raise StateMismatch(
            f"the state has version {state['version']}, this antifreeze knows versions from {_FIRST_VERSION} on",
            hint="it was saved by an older antifreeze, whose epochs had another order; begin the epoch again",
            differences={"version": (state["version"], VERSION)},
        )
    try:
        saved = dict(state["loader"])
        place = _share_place(state, saved) if saved["dataset"] == "iterable" else _index_place(state)
        loaded = Loaded(state, _natural(state["epoch"]), place, from_plain(state["random"]), strict, True)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateMismatch(
            f"the state is damaged: {type(error).__name__}: {error}",
            hint="give load_state_dict() what state_dict() of the same loader returned",
        ) from error
    here = facts_of(loader)
    if saved["dataset"] != here["dataset"]:
        settle(compare(saved, {"dataset": here["dataset"]}), strict=strict, lost="the epoch begins anew")
        return loaded._replace(place=SharePlace() if here["dataset"] == "iterable" else IndexPlace())
    if isinstance(place, SharePlace):
        return loaded._replace(place=_fitted_shares(place, state, here, strict=strict))
    ranks = state.get("rank"), _rank_of(loader)
    same = all(saved.get(name) == here.get(name) for name in _SIZES) and ranks[0] == ranks[1]
    differences = compare(saved, here)
    if place.steps.missing and not same:
        differences["rank"] = ranks  # each has overtaken batches of its own
    return loaded._replace(place=_fitted_steps(place, saved, here, differences, strict=strict), is_alike=same)


def _natural(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} where a number should stand")
    return value


def _index_place(state: Mapping[str, Any]) -> IndexPlace:
    first = _natural(state["step"])
    until = _natural(state.get("until", first))
    runs = [range(_natural(start), start + _natural(count)) for start, count in state.get("missing", [])]
    if any(run.start < first or run.stop > until for run in runs):
        raise ValueError(f"steps {runs} are not between {first} and {until}")
    own = state.get("sampler_state")
    mark = Mark(
        _natural(state["indices"]), None if own is None else sealed_state(own), bool(state.get("sampler_at_end"))
    )
    steps, calls = Steps(first, until, tuple(itertools.chain(*runs))), _natural(state.get("calls", first))
    return IndexPlace(steps, mark, state.get("sampler_epoch"), calls)


def _share_place(state: Mapping[str, Any], facts: Mapping[str, Any]) -> SharePlace:
    shares, own = state.get("shares", []), state.get("own")
    if len(shares) != facts["num_workers"] and (shares or state["step"]):
        raise ValueError(f"{len(shares)} shares of {facts['num_workers']} workers")
    nothing = [None] * len(shares)
    stands = zip(state.get("share_stands", nothing), state.get("share_states", nothing), strict=True)
    reached = tuple(
        Reached(
            _natural(number),
            None if fingerprint is None else _natural(fingerprint),
            None if place is None else _stand(place, user),
            bool(is_over),
        )
        for (number, fingerprint, is_over), (place, user) in zip(shares, stands, strict=True)
    )
    return SharePlace(reached, _natural(state["step"]), None if own is None else _natural(own))


def _stand(place: list[Any], state: dict[str, Any]) -> Stand:
    after, fingerprint, *is_end = place
    return Stand(_natural(after), _natural(fingerprint), sealed_state(state), bool(is_end))


def _fitted_steps(
    place: IndexPlace, saved: dict[str, Any], here: dict[str, Any], differences: dict[str, Any], *, strict: bool
) -> IndexPlace:
    """Return the place for this loader: of another size, if need be, so that as many samples are over."""
    before, now = _global_batch(saved), _global_batch(here)
    lost, repeated, first = _LOST, 0, place.steps.first
    if before and now and before != now:
        first, repeated = divmod(first * before, now)
    elif before == now and before is not None:
        # A step of all ranks together takes the same samples.
        differences = {name: pair for name, pair in differences.items() if name not in _SIZES}
    if differences.keys() <= set(_SIZES):
        lost = f"steps are made of other samples than they would have been, and {repeated} samples come again"
    settle(differences, strict=strict, lost=lost)
    if all(saved.get(name) == here.get(name) for name in _SIZES):
        return place
    return IndexPlace(Steps(first, first), Mark(), place.sampler_epoch)


def _global_batch(facts: Mapping[str, Any]) -> int | None:
    size, ranks = facts.get("batch_size"), facts.get("sampler.num_replicas", 1)
    return size * ranks if type(size) is int and type(ranks) is int else None


def _fitted_shares(place: SharePlace, state: Mapping[str, Any], here: dict[str, Any], *, strict: bool) -> SharePlace:
    """Return the place for this loader. Within an epoch, another number of shares has to start over."""
    saved = dict(state["loader"])
    if place.is_beginning or state.get("ended"):
        others = compare(saved, {name: here[name] for name in _ONLY_WITHIN if name in here})
        if others:
            place = _for_others(place, state, others, here["num_workers"])
        here = {name: value for name, value in here.items() if name not in _ONLY_WITHIN}
    differences = compare(saved, here)
    lost = _LOST
    anew = not differences.keys().isdisjoint(_ONLY_WITHIN)
    if anew:
        lost = f"the epoch begins anew, so that its first {place.batches} batches come again"
    settle(differences, strict=strict, lost=lost, hint="" if not anew else _ONE_FOR_EACH)
    if anew:
        return SharePlace()
    if strict:
        return place
    size, wanted = saved.get("batch_size") or 1, here.get("batch_size") or 1
    return place._replace(shares=tuple(_resized(share, size, wanted) for share in place.shares))


def _for_others(place: SharePlace, state: Mapping[str, Any], others: Mapping[str, Any], num_workers: int) -> SharePlace:
    """Return the place where an epoch begins or has ended, for other shares."""
    if "dataset_state" not in state and any(user and "dataset" in user for user in state.get("share_states", [])):
        logger.warning(
            "antifreeze: the shards of the dataset have states of their own, which are not for another %s. The next "
            "epoch is whole, but begins with the dataset as this loader has it",
            " or ".join(others),
        )
    return place._replace(shares=() if place.is_beginning else (Reached(is_over=True),) * num_workers)


def _resized(share: Reached, size: int, wanted: int) -> Reached:
    """Return how far a share has come, counted in batches of another size."""
    stand = share.stand and share.stand._replace(after=share.stand.after * size // wanted)
    return share._replace(number=share.number * size // wanted, fingerprint=None, stand=stand)


_ONE_FOR_EACH = (
    "an iterable dataset is split among workers and ranks, so it goes on with as many of them, each rank from a state "
    "of its own; load_state_dict(state, strict=False) begins the epoch anew"
)
