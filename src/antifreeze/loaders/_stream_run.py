"""The epochs of a ``StreamingDataLoader``: where each begins, what is read for it, and how far it was delivered.

    loader ──iter()──▶ EpochRun ──▶ StreamEpoch ──▶ StreamRun.batches ──▶ Rebatcher ◀── Blocks ◀── dataset
                                                          │
                                                          └── RowWorkers, if there is user code

A generator makes the batches, each with the position after it. If it is interrupted, by Ctrl-C in a notebook say, its
threads are gone. The next call then starts another one at the position of the last batch that was handed over, as a run
is that was saved there. After an error of ours the epoch is over.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from antifreeze.core import AntifreezeError, ConfigError, compare, forms, settle
from antifreeze.datasets import (
    INFINITE,
    STALL_LIMIT_S,
    Batch,
    ReadOptions,
    ReadRequest,
    UserCode,
    parse_limit,
)
from antifreeze.decode import Blocks, Rebatcher
from antifreeze.diagnosis import History, Report
from antifreeze.distributed import Ranks, find_ranks
from antifreeze.loaders._epoch_run import After, Epoch
from antifreeze.loaders._main_thread_location import watched
from antifreeze.loaders._position import (
    StreamingEpoch,
    StreamPosition,
    StreamSettings,
    check_batch,
    check_left,
    check_windows,
    from_state,
    rank_slice_of,
    to_state,
    warn_of_lanes,
)
from antifreeze.plan import EpochSteps, default_lanes

if TYPE_CHECKING:
    from antifreeze.loaders._row_tasks import RowWorkers


def user_code_of(settings: StreamSettings) -> UserCode:
    """Return what user code does with rows and batches."""
    return replace(settings.dataset.row_code(), collate_fn=settings.collate_fn)


class StreamRun:
    """The position of a loader, and how its next epoch is read from there."""

    def __init__(self, history: History, **workers: Any) -> None:
        self.position = StreamPosition()
        self.epoch = 0
        """The epoch that the next iteration is."""
        self._is_strict = True
        self._history = history
        self._workers = workers
        """What ``RowWorkers`` are made with."""

    @cached_property
    def workers(self) -> RowWorkers:
        """Who runs user code. Imported here: reading without user code needs no worker processes."""
        from antifreeze.loaders._row_tasks import RowWorkers

        return RowWorkers(self._history, **self._workers)

    def report(self) -> Report:
        """Return what happened so far."""
        none = {"persistent_workers": self._workers["persistent"]}
        return self._history.report(**(self.workers.facts() if "workers" in self.__dict__ else none))

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, settings: StreamSettings) -> dict[str, Any]:
        """Return the position as plain numbers and texts."""
        return to_state(self.position, _facts(settings))

    def load_state_dict(self, settings: StreamSettings, state: Mapping[str, Any], *, strict: bool) -> None:
        """Resume at a position that was saved. Raises StateMismatch if it cannot be resumed exactly."""
        position, here = from_state(state), _facts(settings)
        if settings.lanes is not None and position.lanes is not None:
            here["lanes"] = settings.lanes
        settle(compare(state, here), strict=strict, lost="samples of this epoch may be repeated or left out")
        if position.shapes:
            position = _fitted(settings, position)
        self.position, self.epoch, self._is_strict = position, position.epoch, strict

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration."""
        if epoch != self.epoch:
            self.position = StreamPosition(epoch, 0, self.position.global_batch, self.position.shapes)
        self.epoch = epoch

    def num_steps(self, settings: StreamSettings) -> int:
        """Return the number of batches in an epoch. Raises TypeError if it has no end."""
        ranks = find_ranks(settings.rank, settings.world_size)
        steps = _steps(settings, ranks, self.position.lanes or _new_lanes(settings, ranks), 0)
        if steps.num_rows >= INFINITE:
            raise TypeError("the dataset has no end, and the loader no len()")
        return steps.number

    # -- one epoch -------------------------------------------------------------------------------------------------

    def begin(self, settings: StreamSettings) -> StreamPosition:
        """Begin the next epoch, or resume the one at the position, and return where."""
        source = settings.dataset.row_source
        stall_limit_s = (settings.timeout or STALL_LIMIT_S) if settings.num_workers else None
        source.look(stall_limit_s, parse_limit(settings.memory_limit))
        ranks, position = find_ranks(settings.rank, settings.world_size), self.position
        if position.epoch != self.epoch and not (position.sample and source.continues):
            position = position._replace(epoch=self.epoch, sample=0)
        shapes = position.shapes or source.shapes(_new_lanes(settings, ranks), settings.memory_limit)
        if position.shapes:
            check_windows(shapes, source.shapes(position.shapes[0].lanes, None))
        global_batch = settings.batch_size * ranks.world_size
        if position.sample and position.global_batch != global_batch:
            check_batch(position.global_batch, settings.batch_size, ranks.world_size, strict=self._is_strict)
        if (rank_slice := rank_slice_of(ranks, position.sample, shapes[0].lanes)).every > 1 and ranks.rank == 0:
            warn_of_lanes(rank_slice)
        source.in_epoch(position.epoch)
        self.position = StreamPosition(position.epoch, position.sample, global_batch, shapes)
        self.epoch = position.epoch + 1
        return self.position

    def batches(
        self, settings: StreamSettings, position: StreamPosition
    ) -> Generator[tuple[StreamPosition, Batch], None, None]:
        """Yield the batches of an epoch from a position on, each with the position after it."""
        code = user_code_of(settings)
        epoch = _epoch_at(settings, position, has_tracks=code.makes_rows)
        limit = parse_limit(settings.memory_limit)
        options = ReadOptions(
            threads=settings.num_workers,
            ahead=settings.prefetch_factor,
            memory_limit=limit,
            stall_limit_s=settings.timeout or STALL_LIMIT_S,
            is_paced=not code.is_empty,
        )
        blocks = epoch.blocks(options)
        # Closed here, not when it is dropped: an error that the user keeps holds this frame, and with it the threads.
        with closing(blocks), self._watched(settings, code, blocks, epoch), self._history.adding(blocks.spent):
            rebatcher = Rebatcher(
                blocks,
                settings.batch_size,
                count=epoch.steps.number,
                spare=epoch.spare,
                blocks_are_ready=blocks.is_ready,
                memory_limit=limit,
            )
            made: Iterator[tuple[int, Batch]] = (
                self._decoded(settings, blocks, rebatcher)
                if code.is_empty
                else self.workers.batches(settings, code, blocks, rebatcher, epoch)
            )
            for steps, batch in made:
                yield epoch.after(steps), batch

    def _watched(
        self, settings: StreamSettings, code: UserCode, blocks: Blocks, epoch: StreamingEpoch
    ) -> AbstractContextManager[object]:
        """Let other ranks see how the epoch proceeds. Worker processes see to that themselves."""
        if settings.num_workers and not code.is_empty:
            return nullcontext()
        return closing(watched(self._history, blocks, epoch.reading.epoch, settings.stall_limit))

    def _decoded(self, settings: StreamSettings, blocks: Blocks, rebatcher: Rebatcher) -> Iterator[tuple[int, Batch]]:
        """Yield rows as they were decoded, each batch with the number of steps that are over with it."""
        delivery, history = settings.dataset.row_source.delivery, self._history
        history.asked()
        for steps, (block, start, stop) in enumerate(rebatcher, 1):
            blocks.check_process()
            batch = delivery.batch(block, start, stop)
            history.delivered(stop - start, block.nbytes * (stop - start) // max(block.num_rows, 1))
            del block
            if settings.pin_memory:
                batch = delivery.pin(batch)
            history.answered()
            yield steps, batch
            history.asked()
        history.epochs += 1
        history.ended()


class StreamEpoch(Epoch):
    """One epoch of a ``StreamRun``, for an ``EpochRun``."""

    def __init__(self, run: StreamRun, settings: StreamSettings) -> None:
        self._run, self._settings = run, settings
        self._position: StreamPosition | None = None
        """After the last batch that was handed over."""
        self._number = -1

    def __len__(self) -> int:
        return self._run.num_steps(self._settings)

    def start(self) -> Iterator[Any]:
        """Begin an epoch, or start again after an interrupt."""
        if self._position is None:
            self._position = self._run.begin(self._settings)
            self._number = self._position.epoch
        if self._position.epoch != self._number:
            return iter(())  # the last batch was handed over before the interrupt
        return self._run.batches(self._settings, self._position)

    def hand_over(self, arrived: tuple[StreamPosition, Batch]) -> Batch:
        """Move the loader's position."""
        self._position, batch = arrived
        self._run.position = self._position
        return batch

    def on_error(self, error: BaseException, *, is_started: bool) -> After:  # noqa: ARG002
        """After an error of ours, no more can be had. An interrupt costs nothing."""
        return After.END if isinstance(error, AntifreezeError) else After.RESTART


def _facts(settings: StreamSettings) -> dict[str, Any]:
    facts = {"seed": settings.seed, "shuffle": settings.shuffle, "drop_last": settings.drop_last}
    return {**facts, **settings.dataset.row_source.facts()}


def _fitted(settings: StreamSettings, position: StreamPosition) -> StreamPosition:
    """Return where a run resumes here; raises StateMismatch if that is beyond the epoch."""
    lanes = settings.lanes or position.lanes or 1
    try:
        num_rows = settings.dataset.row_source.num_rows(lanes, position.global_batch or 1)
    except ConfigError as error:  # batches that these lanes do not divide
        raise forms.unexpected("state['lanes']", f"a divisor of {position.global_batch}", lanes) from error
    check_left(position, num_rows, drop_last=settings.drop_last)
    is_alike = lanes == position.lanes and len(position.shapes) == settings.dataset.row_source.num_shapes()
    return position if is_alike else position._replace(shapes=())


def _new_lanes(settings: StreamSettings, ranks: Ranks) -> int:
    return settings.lanes or default_lanes(
        ranks.world_size, settings.dataset.row_source.num_fragments() if settings.shuffle else 0
    )


def _steps(settings: StreamSettings, ranks: Ranks, lanes: int, first: int) -> EpochSteps:
    global_batch = settings.batch_size * ranks.world_size
    num_rows = settings.dataset.row_source.num_rows(lanes, global_batch)
    return EpochSteps(num_rows, global_batch, settings.drop_last, first)


def _epoch_at(settings: StreamSettings, position: StreamPosition, *, has_tracks: bool) -> StreamingEpoch:
    """Return what this rank reads from a position on."""
    ranks, lanes = find_ranks(settings.rank, settings.world_size), position.shapes[0].lanes
    rank_slice, steps = rank_slice_of(ranks, position.sample, lanes), _steps(settings, ranks, lanes, position.sample)
    reading = ReadRequest(
        rank_slice.read,
        position.shapes,
        settings.shuffle,
        settings.seed,
        position.epoch,
        steps.global_batch,
        first_leaf=0 if has_tracks else None,
    )
    return StreamingEpoch(settings.dataset.row_source, reading, rank_slice, steps)
