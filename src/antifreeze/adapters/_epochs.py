"""The epochs of one ``DataLoader``: how each begins, how far it was delivered, and how to go on with it elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch.utils.data import IterableDataset

from antifreeze.adapters import _dataset_state
from antifreeze.adapters._even_ranks import take_part
from antifreeze.adapters._indices import Indices
from antifreeze.adapters._random import Random, States
from antifreeze.adapters._samplers import length_of, names_of
from antifreeze.adapters._state import (
    IndexPlace,
    Loaded,
    Place,
    SharePlace,
    check_indices,
    epoch_of,
    from_state,
    to_state,
)
from antifreeze.child import has_state
from antifreeze.core import settle
from antifreeze.crew import IndexSource, ShareSource

_ODD = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class Course:
    """The tasks of an epoch, from where it begins or goes on."""

    number: int
    """What workers know the epoch by; no other of this loader has it."""
    seed: int
    source: IndexSource | ShareSource
    indices: Indices | None = None


@dataclass(slots=True)
class Epoch:
    """One epoch: what it began with, and how far it was delivered. Holds no workers and no iterator."""

    number: int
    seed: int
    states: States
    """Where the generators stood when it began."""
    place: Place
    is_done: bool = False
    random: dict[str, Any] | None = None
    """The same in few words, once somebody has asked."""
    dataset_state: bytes | None = None
    """The state that an iterable dataset had in the trainer when the epoch began."""
    source: IndexSource | ShareSource | None = None

    def delivered(self, course: Course, count: int | None, own: int | None) -> None:
        """Note that a batch was handed over; ranks that are made even have counted them."""
        before, source = self.place, course.source
        self.source = source
        if isinstance(before, SharePlace) and isinstance(source, ShareSource):
            self.place = SharePlace(source.place(), before.batches + 1 if count is None else count, own)
        elif isinstance(before, IndexPlace) and isinstance(source, IndexSource) and course.indices is not None:
            steps = source.place()
            self.place = IndexPlace(steps, course.indices.mark(steps.first), before.sampler_epoch)


class Epochs:
    """Begins epochs, one after the other, and knows the one that was begun last."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        self._loaded = loaded
        self._random = Random()
        self._number = self._loads = 0
        self._runs = -1
        self._epoch: Epoch | None = None

    def copy(self) -> Epochs:
        """Return what a copy of the loader begins with: nothing that was begun here, but what was loaded."""
        return Epochs(self._loaded)

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, loader: Any) -> dict[str, Any]:
        """Return where the loader stands: after the last batch that was delivered."""
        if self._loaded is not None:
            return copy.deepcopy(dict(self._loaded.state))
        epoch, random = self._epoch, self._now(loader)
        if epoch is None or (epoch.is_done and not _has_state(epoch.place)):
            place = _dataset_state.next_place(loader, _beginning(loader), epoch and epoch.source)
            state = to_state(self._number, place, random.describe(random.states()), loader)
            return state | _dataset_state.at_the_beginning(place, _dataset_state.state_now(loader))
        if epoch.random is None:
            epoch.random = random.describe(epoch.states)
        place = _dataset_state.known_place(epoch.place, epoch.source)
        state = to_state(epoch.number, place, epoch.random, loader)
        return state | _dataset_state.within_an_epoch(loader, place, epoch.dataset_state)

    def load_state_dict(self, loader: Any, state: Mapping[str, Any], *, strict: bool) -> None:
        """Have the next epoch go on from a state."""
        if state == {}:  # that of a loader which had none; torchdata takes it for a beginning, too
            return
        loaded = from_state(copy.deepcopy(state), loader, strict=strict, seeds=self._now(loader).seeds())
        _dataset_state.load(loader, loaded)
        self._loaded = loaded
        self._loads += 1

    def key(self, epoch: Epoch) -> str:
        """Return a name for an epoch that is the same on every rank, and belongs to no other epoch."""
        return f"{self._loads}/{epoch.number}"

    # -- beginning -------------------------------------------------------------------------------------------------

    def begin(self, loader: Any) -> tuple[Epoch, Course, bool]:
        """Begin the next epoch, or go on with one that was loaded; tell whether something of it was delivered."""
        loaded, random = self._loaded, self._now(loader)
        place = _beginning(loader) if loaded is None else loaded.place
        if loaded is not None:
            random.restore(loaded.random, loaded.seeds, is_beginning=place.is_beginning, strict=loaded.strict)
            _load_dataset(loader, loaded.state)
        states = random.states()
        seed = _seed_of_rank(random.draw_seed())
        epoch = Epoch(self._number if loaded is None else loaded.epoch, seed, states, place)
        epoch.dataset_state = _dataset_state.state_now(loader)
        course = self._shares(loader, epoch) if isinstance(place, SharePlace) else self._steps(loader, epoch, loaded)
        epoch.source = course.source
        self._loaded, self._epoch, self._number = None, epoch, epoch.number + 1
        return epoch, course, not place.is_beginning

    def again(self, loader: Any, epoch: Epoch) -> Course:
        """Begin an epoch of shares once more: the same batches."""
        return self._shares(loader, Epoch(epoch.number, epoch.seed, {}, SharePlace()))

    def _now(self, loader: Any) -> Random:
        return self._random.of(loader.generator, None if _is_iterable(loader) else loader._index_sampler)

    def _facts(self, loader: Any, epoch: Epoch) -> dict[str, Any]:
        number = self._runs = max(self._runs + 1, epoch.number)
        return {"epoch": number, "seed": epoch.seed, "dataset": type(loader.dataset).__name__}

    def _shares(self, loader: Any, epoch: Epoch) -> Course:
        assert isinstance(epoch.place, SharePlace)  # noqa: S101  the caller has looked
        facts = self._facts(loader, epoch)
        source = ShareSource(max(1, loader.num_workers), reached=epoch.place.shares, in_order=loader.in_order, **facts)
        return Course(facts["epoch"], epoch.seed, source)

    def _steps(self, loader: Any, epoch: Epoch, loaded: Loaded | None) -> Course:
        place, told = epoch.place, epoch_of(loader)
        assert isinstance(place, IndexPlace)  # noqa: S101  the caller has looked
        indices = Indices(loader._index_sampler, self._random)
        if loaded is None or place.is_beginning:
            indices.begin()
        else:
            is_over = place.steps.first == length_of(loader._index_sampler)  # its sampler may be at the next epoch
            if not is_over:
                _check_epoch(place.sampler_epoch, told, strict=loaded.strict)
            if not indices.begin(place.steps.first, place.mark) and loaded.is_alike and not is_over:
                check_indices(names_of(loader._index_sampler), place.steps.first, strict=loaded.strict)
        facts = self._facts(loader, epoch)
        source = IndexSource(indices, over=place.steps, in_order=loader.in_order, **facts)
        epoch.place = place._replace(sampler_epoch=told)
        return Course(facts["epoch"], epoch.seed, source, indices)


def _seed_of_rank(seed: int) -> int:
    """Return what this rank's batches are seeded with: ranks that were seeded alike must not draw the same noise."""
    rank = torch.distributed.get_rank() if take_part(torch.distributed) else 0
    return (seed + rank * _ODD) % 2**63


def _is_iterable(loader: Any) -> bool:
    return isinstance(loader.dataset, IterableDataset)


def _beginning(loader: Any) -> Place:
    return SharePlace() if _is_iterable(loader) else IndexPlace()


def _load_dataset(loader: Any, state: Mapping[str, Any]) -> None:
    if not _is_iterable(loader) and "dataset_state" in state and has_state(loader.dataset):
        loader.dataset.load_state_dict(state["dataset_state"])
        loader._renew_workers()


def _has_state(place: Place) -> bool:
    """Tell whether a sampler of the user's has a say about where it goes on."""
    return isinstance(place, IndexPlace) and place.mark.state is not None


def _check_epoch(saved: Any, told: Any, *, strict: bool) -> None:
    settle(
        {"sampler.epoch": (saved, told)} if saved != told else {},
        strict=strict,
        lost="samples of this epoch may come twice or not at all",
        hint=f"call set_epoch({saved!r}) of the sampler before the loop that goes on with this epoch",
    )
