"""The epochs of one ``DataLoader``: how each begins, how far it was delivered, and how it is resumed elsewhere.

    loader ──iter()──▶ EpochRun ──▶ TorchEpoch ──▶ Epochs.begin   draws what torch's loader draws
                                        │          Epochs.start   makes the tasks, when a batch is asked for
                                        └────────▶ EpochStart     how far it was delivered; the loader keeps this

A loader keeps the last ``EpochStart`` to save a state from. It has no workers and no iterator, so that these end when
the user drops an iterator.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed

from antifreeze.core import AntifreezeError, one_line, settle, step_seed
from antifreeze.datasets.tensors import pin
from antifreeze.loaders import _dataset_state
from antifreeze.loaders._epoch_run import After, Epoch
from antifreeze.loaders._generators import Drawn, Generators, States, draw_seed, to_plain
from antifreeze.loaders._indices import Indices
from antifreeze.loaders._pad_ranks import PaddedRanks, take_part
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
from antifreeze.loaders._torch_settings import TorchLoader, index_sampler, is_iterable, length_of, loading, names_of
from antifreeze.pool import IndexTasks, ShardTasks
from antifreeze.worker import has_state

_ODD = 0x9E3779B97F4A7C15


@dataclass(slots=True)
class LoaderEpoch:
    """The tasks of an epoch, from where it begins or resumes."""

    number: int
    """What workers know the epoch by; no other of this loader has it."""
    seed: int
    source: IndexTasks | ShardTasks
    indices: Indices | None


@dataclass(slots=True)
class EpochStart:
    """One epoch: what it began with, and how far it was delivered."""

    number: int
    drawn: Drawn
    """What was drawn for it."""
    place: Place
    """How far it was delivered."""
    loaded: Loaded | None = None
    """The state that it resumes from, until it has delivered something."""
    is_done: bool = False
    dataset_state: bytes | None = None
    """The state that an iterable dataset had in the trainer when the epoch began."""
    source: IndexTasks | ShardTasks | None = None

    @property
    def seed(self) -> int:
        """What the random numbers of its batches start from: ranks that were seeded alike must not draw the same."""
        seed, resets = self.drawn.seed or 0, self.drawn.resets
        rank = torch.distributed.get_rank() if take_part(torch.distributed) else 0
        return ((step_seed(seed=seed, epoch=resets, step=0) % 2**63 if resets else seed) + rank * _ODD) % 2**63

    def note_beginning(self, loader: TorchLoader, indices: Indices | None) -> None:
        """Note the epoch of the sampler, and what was taken from it."""
        if isinstance(self.place, IndexPosition) and indices is not None:
            self.place = self.place._replace(sampler_epoch=epoch_of(loader), calls=indices.calls)

    def delivered(self, source: Any, indices: Indices | None, padded: PaddedRanks | None) -> None:
        """Note what is over, and what was taken from the sampler for that and for later steps."""
        self.source = source
        if isinstance(self.place, ShardPosition):
            count, own = (self.place.batches + 1, None) if padded is None else (padded.count, padded.own)
            self.place = ShardPosition(source.place(), count, own if own is not None and count > own else None)
        elif indices is not None:
            steps = source.place()
            self.place = self.place._replace(steps=steps, mark=indices.mark(steps.first), calls=indices.calls)
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
        # A sampler of the user's that has a state has a say about where it resumes, even at its end.
        has_say = epoch is not None and isinstance(epoch.place, IndexPosition) and epoch.place.mark.state is not None
        if epoch is None or (epoch.is_done and not has_say):
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
            if not is_iterable(loader) and "dataset_state" in loaded.state and has_state(loader.dataset):
                with loading("the dataset"):
                    loader.dataset.load_state_dict(loaded.state["dataset_state"])
                loader.renew_workers()
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
        tasks = self.tasks(loader, epoch, epoch.place, indices)
        epoch.source = tasks.source
        return tasks

    def tasks(self, loader: TorchLoader, epoch: EpochStart, place: Place, indices: Indices | None) -> LoaderEpoch:
        """Return the tasks of an epoch from a position on."""
        self._runs = max(self._runs + 1, epoch.number)
        facts: dict[str, Any] = {"epoch": self._runs, "seed": epoch.seed, "dataset": type(loader.dataset).__name__}
        facts["in_order"] = loader.in_order
        if isinstance(place, ShardPosition):
            source: IndexTasks | ShardTasks = ShardTasks(max(1, loader.num_workers), reached=place.shares, **facts)
        else:
            assert indices is not None  # noqa: S101  of a map-style dataset
            source = IndexTasks(indices, over=place.steps, is_ready=indices.is_ready, **facts)
        return LoaderEpoch(self._runs, epoch.seed, source, indices)

    def resumed(self, epoch: EpochStart) -> None:
        """Note that an epoch that was loaded has delivered something, or that nothing was left of it."""
        if self._loaded is epoch.loaded:
            self._loaded = None
        epoch.loaded = None

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
            if before_start and before_start != generators.states():
                began = before_start  # most samplers draw only when they are asked for an index
        if seed is None:
            seed = draw_seed(loader.generator)
        if indices is not None:
            indices.prefetch()
        return Drawn(seed, resets, is_persistent, began, None if indices is None else indices.asked), indices

    def _replay(self, loader: TorchLoader, epoch: EpochStart, loaded: Loaded, indices: Indices) -> None:
        """Have the sampler give again what it gave before the state was saved; the trainer's generators do not move."""
        place = epoch.place
        assert isinstance(place, IndexPosition)  # noqa: S101  it has indices
        sampler, step = index_sampler(loader), place.steps.first
        is_over = step == length_of(sampler)  # its sampler may be at the next epoch
        saved, told = place.sampler_epoch, epoch_of(loader)
        if step and not is_over and saved != told:
            settle(
                {"sampler.epoch": (saved, told)},
                strict=loaded.strict,
                lost="samples of this epoch may come twice or not at all",
                hint=f"call set_epoch({saved!r}) of the sampler before the loop that resumes this epoch",
            )
        with _generators(loader).replaying(loaded.random.began or {}):
            indices.start(place.mark)
            is_same = indices.go_to(step, place.mark, place.calls, loaded.random.asked)
        if not is_same and loaded.is_alike and not is_over:
            check_indices(names_of(sampler), step, strict=loaded.strict)
        indices.prefetch(step)


def _generators(loader: TorchLoader) -> Generators:
    """Return what the loader draws from now: frameworks set attributes at any time."""
    return Generators(loader.generator, None if is_iterable(loader) else index_sampler(loader))


def _indices(loader: TorchLoader) -> Indices | None:
    """Return the indices of a map-style dataset, for a sampler that is not started yet."""
    if is_iterable(loader):
        return None
    ahead = loader.num_workers * max(1, loader.prefetch_factor or 0)  # what torch's loader takes before the first batch
    return Indices(index_sampler(loader), _generators(loader), ahead=ahead)


def _beginning(loader: TorchLoader) -> Place:
    return ShardPosition() if is_iterable(loader) else IndexPosition()


# -- one epoch, for an EpochRun -------------------------------------------------------------------------------------


class TorchEpoch(Epoch):
    """What torch's loader draws when an iterator is made is drawn when this is made. Nothing else happens then."""

    def __init__(
        self,
        loader: TorchLoader,
        epochs: Epochs,
        make_runner: Callable[[LoaderEpoch], Iterator[Any]],
        *,
        padding_key: str | None,
        known_length: int | None,
    ) -> None:
        self._loader, self._epochs, self._make_runner = loader, epochs, make_runner
        self._padding_key = padding_key
        """What ranks know this loader by, if those whose data ends first repeat it; None if they do not."""
        self._padded: PaddedRanks | None = None
        # As in torch: what len(loader) has found before the epoch began, for iterable datasets only.
        self._length = known_length
        self._begin()

    def __len__(self) -> int:
        return len(self._loader)

    def _begin(self) -> None:
        self._loads = self._epochs.loads
        self._epoch, self._indices = self._epochs.begin(self._loader)

    def start(self) -> Iterator[Any]:
        """Start the sampler if that was not done, and return who makes the batches."""
        if self._loads != self._epochs.loads:
            self._begin()  # frameworks make an iterator, and then load a state
        epoch = self._epoch
        if epoch.loaded is not None:
            self._loads = -1  # a state that is refused now must not be taken for good the next time
        self._tasks = self._epochs.start(self._loader, epoch, self._indices)
        self._loads = self._epochs.loads
        runner = self._make_runner(self._tasks)
        self._padded = None
        if self._padding_key is None or not take_part(torch.distributed):
            return runner
        # Ranks know an epoch by a name that is the same on all of them, and belongs to no other epoch.
        key = f"{self._padding_key}/{self._loads}/{epoch.number}"
        place: Any = epoch.place
        self._padded = PaddedRanks(
            runner, partial(self._repeated, epoch), key, torch.distributed, count=place.batches, own=place.own
        )
        return self._padded

    def _repeated(self, epoch: EpochStart) -> Iterator[Any]:
        """Begin the epoch once more, on a rank whose data has ended before that of others."""
        self._tasks = self._epochs.tasks(self._loader, epoch, ShardPosition(), None)
        return self._make_runner(self._tasks)

    def on_arrival(self) -> None:
        """Ask the sampler when torch's loader would."""
        if self._indices is not None:
            self._indices.more()

    def hand_over(self, arrived: Any) -> Any:
        """Pin a batch and note that it is delivered."""
        batch = pin(arrived) if self._loader.pin_memory else arrived
        if self._epoch.loaded is not None:
            self._epochs.resumed(self._epoch)
        self._epoch.delivered(self._tasks.source, self._indices, self._padded)
        return batch

    def on_delivery(self) -> None:
        """Warn if there are more batches than the dataset has said, as torch does."""
        if self._length is not None and (excess := self._excess()):
            warnings.warn(excess, stacklevel=3)

    def on_error(self, error: BaseException, *, is_started: bool) -> After:
        """After an error of ours, a batch is missing, and the next call returns the one after it."""
        if is_started and isinstance(error, AntifreezeError) and self._indices is not None:
            self._indices.more()
            self._epoch.delivered(self._tasks.source, self._indices, None)
        return After.CONTINUE

    def on_end(self) -> bool:
        """True if nothing was left of an epoch that was loaded: then the next one begins."""
        if self._epoch.loaded is not None:
            self._epochs.resumed(self._epoch)
            self._begin()
            return True
        if self._indices is not None:
            self._epoch.delivered(self._tasks.source, self._indices, None)
        self._epoch.is_done = True
        return False

    def _excess(self) -> str:
        """Return a warning if more batches were delivered than the dataset has samples, by its ``__len__``."""
        place = self._epoch.place
        # A rank that repeats its batches because others have more knows that it does.
        if not isinstance(place, ShardPosition) or place.own is not None or place.batches <= (self._length or 0):
            return ""
        dataset = one_line(self._loader.dataset)
        text = (
            f"Length of IterableDataset {dataset} was reported to be {self._length} (when accessing "
            f"len(dataloader)), but {place.batches} samples have been fetched. "
        )
        if not self._loader.num_workers:
            return text
        return text + (
            "For multiprocessing data-loading, this happens if every worker yields the whole dataset: let __iter__ "
            "yield the shard of its worker only, see torch.utils.data.get_worker_info()."
        )
