"""The epochs of one ``DataLoader``: how each begins, how far it was delivered, and how it is resumed elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed

from antifreeze.core import settle, step_seed
from antifreeze.loaders import _dataset_state
from antifreeze.loaders._generators import Drawn, Generators, States, differing, draw_seed, to_plain
from antifreeze.loaders._indices import Indices, Mark, Noted
from antifreeze.loaders._pad_ranks import take_part
from antifreeze.loaders._samplers import index_sampler, length_of, names_of
from antifreeze.loaders._saved_state import (
    IndexPosition,
    Loaded,
    Place,
    ShardPosition,
    check_indices,
    epoch_of,
    from_state,
    to_state,
)
from antifreeze.loaders._torch_settings import TorchLoader, is_iterable
from antifreeze.loaders._user_states import loading
from antifreeze.pool import IndexSteps, IndexTasks, ShardTasks
from antifreeze.worker import has_state

_ODD = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class LoaderEpoch:
    """The tasks of an epoch, from where it begins or resumes."""

    number: int
    """What workers know the epoch by; no other of this loader has it."""
    seed: int
    source: IndexTasks | ShardTasks
    indices: Indices | None = None


@dataclass(slots=True)
class EpochStart:
    """One epoch: what it began with, and how far it was delivered. Holds no workers and no iterator."""

    number: int
    drawn: Drawn
    """What was drawn for it."""
    began_at: Place
    loaded: Loaded | None = None
    """The state that it resumes from, until it has delivered something."""
    is_done: bool = False
    dataset_state: bytes | None = None
    """The state that an iterable dataset had in the trainer when the epoch began."""
    source: IndexTasks | ShardTasks | None = None
    _shares: ShardPosition | None = None
    noted: tuple[IndexSteps, Noted, int] | None = None
    """Which steps are over, what was noted of the first that is not, and how often the sampler was asked."""

    @property
    def place(self) -> Place:
        """How far it was delivered."""
        if self.noted is None:
            return self._shares or self.began_at
        steps, mark, calls = self.noted
        return IndexPosition(steps, Mark(*mark[1:]), getattr(self.began_at, "sampler_epoch", None), calls)

    @property
    def seed(self) -> int:
        """What the random numbers of its batches start from."""
        seed, resets = self.drawn.seed or 0, self.drawn.resets
        return _seed_of_rank(step_seed(seed=seed, epoch=resets, step=0) % 2**63 if resets else seed)

    def note_beginning(self, loader: TorchLoader, indices: Indices | None) -> None:
        """Note the epoch of the sampler, and what was taken from it."""
        if isinstance(self.began_at, IndexPosition) and indices is not None:
            self.began_at = self.began_at._replace(sampler_epoch=epoch_of(loader), calls=indices.calls)

    def delivered(self, source: Any, count: int | None, own: int | None) -> None:
        """Note that a batch of a shard was handed over; ranks that are padded have counted them."""
        before = self._shares or self.began_at
        assert isinstance(before, ShardPosition)  # noqa: S101  so it began
        self.source = source
        self._shares = ShardPosition(source.place(), before.batches + 1 if count is None else count, own)

    def stepped(self, source: Any, indices: Indices) -> None:
        """Note which steps are over, and what was taken from the sampler for them and for later ones."""
        steps: IndexSteps = source.place()
        self.noted = (steps, indices.mark(steps.first), indices.calls)
        if self.drawn.asked is None:
            self.drawn = self.drawn._replace(asked=indices.asked)


class Epochs:
    """Begins epochs, one after the other, and knows the one that was begun last."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        self._loaded = loaded
        self._number = 0
        self.loads = 0
        """How many states were loaded."""
        self._runs = -1
        self._epoch: EpochStart | None = None
        self._persistent: Drawn | None = None
        """What was drawn for workers that stay for all epochs."""

    def copy(self) -> Epochs:
        """Return what a copy of the loader begins with: nothing that was begun here, but what was loaded."""
        return Epochs(self._loaded)

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, loader: TorchLoader) -> dict[str, Any]:
        """Return the position of the loader: after the last batch that was delivered."""
        epoch, now = self._epoch, _generators(loader).states()
        if self._loaded is not None:
            state = copy.deepcopy(dict(self._loaded.state))
            return state | {"random": to_plain(self._loaded.random._replace(now=now))}
        if epoch is None or (epoch.is_done and not _has_state(epoch.place)):
            drawn = (self._persistent or Drawn())._replace(began=None, now=now)
            place = _dataset_state.next_place(loader, _beginning(loader), epoch and epoch.source)
            state = to_state(self._number, place, drawn, loader)
            return state | _dataset_state.at_the_beginning(place, _dataset_state.state_now(loader))
        place = _dataset_state.known_place(epoch.place, epoch.source)
        state = to_state(epoch.number, place, epoch.drawn._replace(now=now), loader)
        return state | _dataset_state.within_an_epoch(loader, place, epoch.dataset_state)

    def load_state_dict(self, loader: TorchLoader, state: Mapping[str, Any], *, strict: bool) -> None:
        """Resume from a state with the next epoch, and put generators where they were when it was saved."""
        if isinstance(state, Mapping) and not state:
            return  # that of a loader which had none; torchdata takes it for a beginning, too
        loaded = from_state(state, loader, strict=strict)
        _dataset_state.load(loader, loaded)
        self._loaded = loaded
        self.loads += 1
        _generators(loader).put(loaded.random.now or {})

    def key(self, epoch: EpochStart) -> str:
        """Return a name for an epoch that is the same on every rank, and belongs to no other epoch."""
        return f"{self.loads}/{epoch.number}"

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin(self, loader: TorchLoader) -> tuple[EpochStart, Indices | None]:
        """Begin the next epoch, or resume one that was loaded. Draws what torch's loader draws at ``iter()``.

        A state that was loaded stays, until the epoch that resumes from it has delivered something: an iterator that is
        made and thrown away must not cost it. Its sampler is started when the first batch is asked for, unless that
        would be seen in a generator: Lightning makes an iterator first, and tells the sampler its epoch after that.
        """
        loaded = self._loaded
        if loaded is not None:
            self._persistent = loaded.random if loaded.random.is_persistent else None
            _load_dataset(loader, loaded.state)
        if loaded is None or loaded.random.began is None:
            if loaded is not None:
                self._loaded, self._number = None, loaded.epoch
            drawn, indices = self._draw(loader, is_loaded=loaded is not None)
            place = _beginning(loader)
            if loaded is not None and isinstance(loaded.place, ShardPosition):
                place = loaded.place  # shards of a dataset may keep their state from epoch to epoch
            epoch = EpochStart(self._number, drawn, place)
            epoch.note_beginning(loader, indices)
        else:
            epoch, indices = EpochStart(loaded.epoch, loaded.random, loaded.place, loaded), _indices(loader)
        if epoch.drawn.is_persistent:
            self._persistent = epoch.drawn
        epoch.dataset_state = _dataset_state.state_now(loader)
        self._epoch = epoch
        return epoch, indices

    def start(self, loader: TorchLoader, epoch: EpochStart, indices: Indices | None) -> LoaderEpoch:
        """Return the tasks of an epoch whose first batch is asked for. Only now it counts as one."""
        if epoch.loaded is None:
            epoch.number = max(epoch.number, self._number)
        self._number = epoch.number + 1
        epoch.dataset_state = _dataset_state.state_now(loader)
        if indices is not None and not indices.is_started:
            if epoch.loaded is not None:
                self._replay(loader, epoch, epoch.loaded, indices)
            else:
                indices.start()
                indices.prefetch()
            epoch.note_beginning(loader, indices)
        course = self._shares(loader, epoch) if indices is None else self._steps(loader, epoch, indices)
        epoch.source = course.source
        return course

    def resumed(self, epoch: EpochStart) -> None:
        """Note that an epoch that was loaded has delivered something, or that nothing was left of it."""
        if self._loaded is epoch.loaded:
            self._loaded = None
        epoch.loaded = None

    def again(self, loader: TorchLoader, epoch: EpochStart) -> LoaderEpoch:
        """Begin an epoch of shards once more: the same batches."""
        return self._shares(loader, EpochStart(epoch.number, epoch.drawn, ShardPosition()))

    def _draw(self, loader: TorchLoader, *, is_loaded: bool) -> tuple[Drawn, Indices | None]:
        """Draw what torch's loader draws when an epoch begins, from the same generators, in the same order.

        Without workers that is: an iterator of the sampler, then the base seed. With workers it makes a second iterator
        after that, and asks it for the first steps. Workers that stay have their base seed; for a later epoch only that
        second iterator is made.
        """
        has_workers = loader.num_workers > 0
        is_persistent = has_workers and loader.persistent_workers
        before = self._persistent if is_persistent else None
        seed, resets = (None, 0) if before is None else (before.seed, before.resets + 1)
        generators, indices = _generators(loader), _indices(loader)
        if is_loaded and indices is not None and indices.draws_nothing:
            if seed is None:
                seed = draw_seed(loader.generator)
            return Drawn(seed, resets, is_persistent, {}), indices
        if has_workers and seed is None:
            if indices is not None:
                indices.start()
            seed = draw_seed(loader.generator)
        began: States = {}
        if indices is not None:
            before_start = generators.states() if generators.is_user_code else {}
            indices.start()
            if before_start:  # most samplers draw only when they are asked for an index
                began = before_start if differing(before_start, generators.states()) else {}
        if seed is None:
            seed = draw_seed(loader.generator)
        if indices is not None:
            indices.prefetch()
        return Drawn(seed, resets, is_persistent, began, None if indices is None else indices.asked), indices

    def _replay(self, loader: TorchLoader, epoch: EpochStart, loaded: Loaded, indices: Indices) -> None:
        """Have the sampler give again what it gave before the state was saved; the trainer's generators do not move."""
        place = epoch.began_at
        assert isinstance(place, IndexPosition)  # noqa: S101  it has indices
        sampler, step = index_sampler(loader), place.steps.first
        is_over = step == length_of(sampler)  # its sampler may be at the next epoch
        if step and not is_over:
            _check_epoch(place.sampler_epoch, epoch_of(loader), strict=loaded.strict)
        with _generators(loader).replaying(loaded.random.began or {}):
            indices.start(place.mark)
            is_same = indices.go_to(step, place.mark, place.calls, loaded.random.asked)
        if not is_same and loaded.is_alike and not is_over:
            check_indices(names_of(sampler), step, strict=loaded.strict)
        indices.prefetch(step)

    def _facts(self, loader: TorchLoader, epoch: EpochStart) -> dict[str, Any]:
        number = self._runs = max(self._runs + 1, epoch.number)
        return {"epoch": number, "seed": epoch.seed, "dataset": type(loader.dataset).__name__}

    def _shares(self, loader: TorchLoader, epoch: EpochStart) -> LoaderEpoch:
        assert isinstance(epoch.place, ShardPosition)  # noqa: S101  the caller has looked
        facts = self._facts(loader, epoch)
        source = ShardTasks(max(1, loader.num_workers), reached=epoch.place.shares, in_order=loader.in_order, **facts)
        return LoaderEpoch(facts["epoch"], epoch.seed, source)

    def _steps(self, loader: TorchLoader, epoch: EpochStart, indices: Indices) -> LoaderEpoch:
        assert isinstance(epoch.place, IndexPosition)  # noqa: S101  the caller has looked
        facts = self._facts(loader, epoch)
        source = IndexTasks(
            indices, over=epoch.place.steps, in_order=loader.in_order, is_ready=indices.is_ready, **facts
        )
        return LoaderEpoch(facts["epoch"], epoch.seed, source, indices)


def _generators(loader: TorchLoader) -> Generators:
    """Return what the loader draws from now: frameworks set attributes at any time."""
    return Generators(loader.generator, None if is_iterable(loader) else index_sampler(loader))


def _indices(loader: TorchLoader) -> Indices | None:
    """Return the indices of a map-style dataset, for a sampler that is not started yet."""
    if is_iterable(loader):
        return None
    ahead = loader.num_workers * max(1, loader.prefetch_factor or 0)  # what torch's loader takes before the first batch
    return Indices(index_sampler(loader), _generators(loader), ahead=ahead)


def _seed_of_rank(seed: int) -> int:
    """Return what this rank's batches are seeded with: ranks that were seeded alike must not draw the same noise."""
    rank = torch.distributed.get_rank() if take_part(torch.distributed) else 0
    return (seed + rank * _ODD) % 2**63


def _beginning(loader: TorchLoader) -> Place:
    return ShardPosition() if is_iterable(loader) else IndexPosition()


def _load_dataset(loader: TorchLoader, state: Mapping[str, Any]) -> None:
    if not is_iterable(loader) and "dataset_state" in state and has_state(loader.dataset):
        with loading("the dataset"):
            loader.dataset.load_state_dict(state["dataset_state"])
        loader.renew_workers()


def _has_state(place: Place) -> bool:
    """True if a sampler of the user's has a say about where it resumes."""
    return isinstance(place, IndexPosition) and place.mark.state is not None


def _check_epoch(saved: Any, told: Any, *, strict: bool) -> None:
    settle(
        {"sampler.epoch": (saved, told)} if saved != told else {},
        strict=strict,
        lost="samples of this epoch may come twice or not at all",
        hint=f"call set_epoch({saved!r}) of the sampler before the loop that resumes this epoch",
    )
