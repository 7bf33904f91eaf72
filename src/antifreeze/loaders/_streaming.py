"""The loader: batches of a dataset, decoded ahead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import IO, Any

from antifreeze.core import ConfigError, compare, forms, settle
from antifreeze.core import arguments as check
from antifreeze.datasets import (
    INFINITE,
    STALL_LIMIT_S,
    Batch,
    Delivery,
    ReadOptions,
    ReadRequest,
    RowSource,
    UserCode,
    parse_limit,
)
from antifreeze.decode import Blocks, Rebatcher
from antifreeze.diagnosis import Report
from antifreeze.distributed import Ranks, find_ranks
from antifreeze.loaders._inline import InlineBatches
from antifreeze.loaders._position import (
    MAX_EPOCH,
    StreamPosition,
    check_batch,
    check_left,
    check_windows,
    from_state,
    to_state,
    warn_of_lanes,
)
from antifreeze.loaders._refused_arguments import INSTEAD, checked_dataset, refuse
from antifreeze.loaders._row_tasks import RowsProgram, RowTasks
from antifreeze.loaders._shared_arguments import default_memory_limit, make_pool_config, split_on_error
from antifreeze.loaders._streaming_epoch import StreamingEpoch, rank_slice_of
from antifreeze.loaders._streaming_iterator import StreamingIterator
from antifreeze.plan import MAX_LANES, EpochSteps, default_lanes
from antifreeze.pool import Batches, History, Pool, PoolCache, PoolConfig, PrefetchTuner, open_skip_log

_AHEAD = 2


class StreamingDataLoader:
    """Batches of a ``StreamingDataset``.

    Rows are decoded by threads. A transform or a collate function runs in worker processes, which are watched: one that
    dies or stands still is replaced, and its batches are made again. Nothing is started until the first batch is asked
    for, and everything ends with the iteration.

    Args:
        dataset: what to read.
        batch_size: rows in a batch.
        shuffle: whether to shuffle; by default what the dataset says.
        num_workers: decoder threads, and as many worker processes if there is a transform or a collate function. With
            0, everything happens in the calling thread.
        collate_fn: a function that makes a batch of a list of rows, as in torch.
        pin_memory: whether tensors are put in page-locked memory, if there is an accelerator.
        drop_last: whether a last batch that is not full is left out; by default what the dataset says, else False.
        timeout: seconds without any progress after which ``next`` raises ``Stalled``; 0 means 120.
        worker_init_fn: a function that each worker process calls with its number when it starts, as in torch. Without
            worker processes it is not called.
        multiprocessing_context: accepted, and without effect: this process is never forked.
        prefetch_factor: how many row groups for each thread, or windows when shuffling, may be in work at a time.
        persistent_workers: whether worker processes stay for the next epoch.
        seed: what the order depends on, together with the epoch; by default the dataset's.
        memory_limit: bytes, or text such as ``"256MB"``, that bound the decoded rows that were not delivered yet; by
            default an eighth of what the machine or the container has.
        on_error: ``"raise"``; ``"skip"``, to leave out rows whose transform fails and report them; or a function that
            is called with the error and returns ``"skip"`` or ``"raise"``.
        stall_limit: seconds that a worker process may stand still at one row before it is replaced. By default it
            depends on what the worker does and on how long rows have taken so far.
        max_restarts: how many lost workers of an epoch are replaced before it is given up.
        worker_memory_limit: bytes, or text such as ``"4GB"``, beyond which a worker that has doubled is replaced.
        skip_log: a file to which one line of JSON is added for each row that is left out.
        rank, world_size: which part of the data this process reads; by default what ``torch.distributed`` says, or the
            environment of torchrun, SLURM, MPI or Lightning.
        lanes: the number of parts that an epoch is split into. A run can go on with any number of ranks; one that
            divides this number costs nothing. By default the ranks, or a multiple of them.
        pin_memory_device, in_order, profile_dir, profile_skip_batches: accepted, and without effect: memory is pinned
            for the accelerator that torch uses, batches always come in order, and profiles are not written.
        sampler, batch_sampler, generator, profile_batches, profile_cprofile: refused unless they ask for nothing; the
            error says what to do instead.
    """

    @check.explained("StreamingDataLoader", instead=INSTEAD)
    def __init__(
        self,
        dataset: RowSource,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",  # noqa: ARG002
        in_order: bool = True,  # noqa: ARG002
        profile_batches: bool | int = False,
        profile_skip_batches: int = 0,  # noqa: ARG002
        profile_dir: object = None,  # noqa: ARG002
        profile_cprofile: bool = False,
        seed: int | None = None,
        memory_limit: int | str | None = None,
        on_error: str | Callable[[Any], Any] = "raise",
        stall_limit: float | None = None,
        max_restarts: int = 100,
        worker_memory_limit: int | str | None = None,
        skip_log: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
    ) -> None:
        self.dataset = dataset = checked_dataset(dataset)
        asked = {"sampler": sampler, "batch_sampler": batch_sampler, "generator": generator, "batch_size": batch_size}
        refuse(**asked, profile_batches=profile_batches, profile_cprofile=profile_cprofile)
        self.batch_size = check.integer("batch_size", batch_size, 1)
        self.num_workers = check.integer("num_workers", num_workers, 0)
        self.prefetch_factor = (
            _AHEAD if prefetch_factor is None else check.integer("prefetch_factor", prefetch_factor, 1)
        )
        self.shuffle = dataset.shuffle if shuffle is None else check.flag("shuffle", shuffle)
        self.drop_last = dataset.drop_last if drop_last is None else check.flag("drop_last", drop_last)
        self.seed = dataset.seed if seed is None else check.integer("seed", seed)
        check.function("collate_fn", collate_fn)
        check.function("worker_init_fn", worker_init_fn)
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.pin_memory = check.flag("pin_memory", pin_memory)
        self.persistent_workers = check.flag("persistent_workers", persistent_workers)
        self.timeout = check.seconds("timeout", timeout)
        self.epoch = 0
        self.rank, self.world_size = rank, world_size
        if (rank, world_size) != (None, None):
            find_ranks(rank, world_size)  # raises now what is wrong with them
        self.lanes = None if lanes is None else check.integer("lanes", lanes, 1, MAX_LANES)
        self._place, self._strict = StreamPosition(), True
        self.multiprocessing_context = check.start_method("multiprocessing_context", multiprocessing_context)
        self._memory_limit = None if memory_limit is None else parse_limit(memory_limit)
        self.on_error, self.stall_limit, self.max_restarts = on_error, stall_limit, max_restarts
        mode, self._decide = split_on_error(on_error)
        self._config = self._make_config(mode, worker_memory_limit)
        self._history = History(self.num_workers, self.batch_size, open_skip_log(skip_log))
        self._tuner = PrefetchTuner(prefetch_factor)
        self._pool_cache = PoolCache(persistent=self.persistent_workers)
        self._number = 0

    def _make_config(self, on_error: str, worker_memory_limit: int | str | None) -> PoolConfig:
        return make_pool_config(
            num_workers=self.num_workers,
            dataset="StreamingDataset",
            on_error=on_error,
            stall_limit=self.stall_limit,
            max_restarts=self.max_restarts,
            memory_limit=default_memory_limit(worker_memory_limit, self.num_workers),
            waits_for_all=self.worker_init_fn is not None,
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch; it is the same on every rank."""
        ranks = find_ranks(self.rank, self.world_size)
        steps = self._steps(ranks, self._place.lanes or self._new_lanes(ranks), 0)
        if steps.num_rows >= INFINITE:
            raise TypeError("the dataset has no end, and the loader no len()")
        return steps.number

    def prestart(self) -> None:
        """Start the processes that workers are forked from, in the background, and return at once.

        They import what the transform needs, while this process builds the model. Without this call they start when
        the first batch is asked for. Does nothing if there is no user code to run, or ``num_workers`` is 0.

        Raises:
            NotPicklable: if the transform or the collate function cannot be sent to a worker process.
        """
        if self.num_workers > 0 and not self._code.is_empty:
            self._pool_cache.prestart(self._make_program())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration is; each iteration moves on by one."""
        epoch = check.integer("epoch", epoch, 0, MAX_EPOCH)
        if epoch != self.epoch:
            self._place = StreamPosition(epoch, 0, self._place.global_batch, self._place.shapes)
        self.epoch = epoch

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that runs, or that ran last, from 1 on; 0 before the first."""
        return self.epoch

    @current_epoch.setter
    def current_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    # -- where it stands -------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands: after the last batch that was delivered. JSON can hold it; it is small."""
        return to_state(self._place, self._facts())

    def load_state_dict(self, state: Mapping[str, Any], strict: bool | None = None) -> None:
        """Have the next iteration go on where a state was saved, on any number of ranks and workers.

        What cannot be continued exactly is refused, or only warned of with ``strict=False``, which is the default for a
        dataset that was made with ``force_override_state_dict=True``.
        """
        if state is None or state == {}:
            return  # frameworks give what was saved before there was a state
        strict = not self.dataset.force_override_state_dict if strict is None else strict
        place, here = from_state(state), self._facts()
        if self.lanes is not None and place.lanes is not None:
            here["lanes"] = self.lanes
        settle(compare(state, here), strict=strict, lost="samples of this epoch may be repeated or left out")
        if place.shapes:
            place = self._fitted(place)
        self._place = place
        self._strict, self.epoch = strict, place.epoch

    def _fitted(self, place: StreamPosition) -> StreamPosition:
        """Return where a run resumes here; raises StateMismatch if that is beyond the epoch."""
        lanes = self.lanes or place.lanes or 1
        try:
            num_rows = self.dataset._num_rows(lanes, place.global_batch or 1)
        except ConfigError as error:  # batches that these lanes do not divide
            raise forms.unexpected("state['lanes']", f"a divisor of {place.global_batch}", lanes) from error
        check_left(place, num_rows, drop_last=self.drop_last)
        is_alike = lanes == place.lanes and len(place.shapes) == self.dataset._num_shapes()
        return place if is_alike else place._replace(shapes=())

    def _facts(self) -> dict[str, Any]:
        return {"seed": self.seed, "shuffle": self.shuffle, "drop_last": self.drop_last, **self.dataset._facts()}

    def _new_lanes(self, ranks: Ranks) -> int:
        return self.lanes or default_lanes(ranks.world_size, self.dataset._num_fragments() if self.shuffle else 0)

    def _steps(self, ranks: Ranks, lanes: int, first: int) -> EpochSteps:
        global_batch = self.batch_size * ranks.world_size
        return EpochSteps(self.dataset._num_rows(lanes, global_batch), global_batch, self.drop_last, first)

    def _begin(self) -> StreamPosition:
        """Return where the epoch begins, or goes on, that is the next one now."""
        stall_limit_s = (self.timeout or STALL_LIMIT_S) if self.num_workers else None
        self.dataset._look(stall_limit_s, parse_limit(self._memory_limit))
        ranks, place = find_ranks(self.rank, self.world_size), self._place
        if place.epoch != self.epoch and not (place.sample and self.dataset._continues):
            place = place._replace(epoch=self.epoch, sample=0)
        epoch = place.epoch
        shapes = place.shapes or self.dataset._shapes(self._new_lanes(ranks), self._memory_limit)
        if place.shapes:
            check_windows(shapes, self.dataset._shapes(place.shapes[0].lanes, None))
        global_batch = self.batch_size * ranks.world_size
        if place.sample and place.global_batch != global_batch:
            check_batch(place.global_batch, self.batch_size, ranks.world_size, strict=self._strict)
        if (rank_slice := rank_slice_of(ranks, place.sample, shapes[0].lanes)).every > 1 and ranks.rank == 0:
            warn_of_lanes(rank_slice)
        self.dataset._in_epoch(epoch)
        self._place, self.epoch = StreamPosition(epoch, place.sample, global_batch, shapes), epoch + 1
        return self._place

    def _course(self, place: StreamPosition) -> StreamingEpoch:
        """Return what this rank reads from there on."""
        ranks, lanes = find_ranks(self.rank, self.world_size), place.shapes[0].lanes
        rank_slice, steps = rank_slice_of(ranks, place.sample, lanes), self._steps(ranks, lanes, place.sample)
        reading = ReadRequest(rank_slice.read, place.shapes, self.shuffle, self.seed, place.epoch, steps.global_batch)
        if self._code.code.maker.needs_tracks:
            reading = reading._replace(first_leaf=0)
        return StreamingEpoch(self.dataset, reading, rank_slice, steps)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over one epoch, or over what is left of it after ``load_state_dict``.

        It is lazy: nothing starts, and no epoch is used up, before its first batch is asked for. Frameworks make
        iterators that they throw away.
        """
        return StreamingIterator(self)

    def _batches(self, place: StreamPosition) -> Iterator[tuple[StreamPosition, Batch]]:
        """Yield the batches of an epoch from a place on, each with the place after it."""
        course = self._course(place)
        threads, ahead, limit = self.num_workers, self.prefetch_factor, parse_limit(self._memory_limit)
        options = ReadOptions(
            threads=threads,
            ahead=ahead,
            memory_limit=limit,
            stall_limit_s=self.timeout or STALL_LIMIT_S,
            is_paced=not self._code.is_empty,
        )
        blocks = course.blocks(options)
        # Closed here, not when it is dropped: an error that the user keeps holds this frame, and with it the threads.
        with closing(blocks), self._watched(blocks, course), self._history.adding(blocks.spent):
            count, ready = course.steps.number, blocks.is_ready
            cuts = Rebatcher(
                blocks,
                self.batch_size,
                count=count,
                spare=course.spare,
                blocks_are_ready=ready,
                memory_limit=limit,
            )
            batches = self._plain(blocks, cuts) if self._code.is_empty else self._made(blocks, cuts, course)
            for step, batch in batches:
                yield course.after(step), batch

    def _watched(self, blocks: Blocks, course: StreamingEpoch) -> AbstractContextManager[object]:
        """Let other ranks see how the epoch goes. Worker processes see to that themselves."""
        if self.num_workers and not self._code.is_empty:
            return nullcontext()
        return closing(self._history.watched(blocks, course.reading.epoch, self.stall_limit))

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and what would help most; return the same as an object."""
        report = self._history.report(**self._pool_cache.facts())
        print(report, file=file or sys.stdout)
        return report

    def _plain(self, blocks: Blocks, cuts: Rebatcher) -> Iterator[tuple[int, Batch]]:
        """Yield rows as they were decoded, each batch with the number of steps that are over with it."""
        delivery, history = self.dataset._delivery, self._history
        history.asked()
        for step, (block, start, stop) in enumerate(cuts, 1):
            blocks.check_process()
            batch = delivery.batch(block, start, stop)
            history.delivered(stop - start, block.nbytes * (stop - start) // max(block.num_rows, 1))
            del block
            if self.pin_memory:
                batch = delivery.pin(batch)
            history.answered()
            yield step, batch
            history.asked()
        history.epochs += 1
        history.ended()

    def _made(self, blocks: Blocks, cuts: Rebatcher, course: StreamingEpoch) -> Iterator[tuple[int, Batch]]:
        """Yield what the user's functions make of the rows, each batch with the number of steps that are over."""
        delivery = self._user_delivery
        self._number += 1
        source = RowTasks(cuts, blocks.hold, delivery, course, number=self._number)
        batches: Iterator[Batch]
        if self.num_workers == 0:
            batches = InlineBatches(
                self._make_program, lambda: source, self._history, on_error=self._config.on_error, decide=self._decide
            )
        else:
            batches = Batches(
                self._pool_cache,
                self._make_pool,
                lambda _: source,
                self._tuner,
                self._history,
                number=lambda number=self._number: number,  # type: ignore[misc]
                num_workers=self.num_workers,
                in_order=True,
                timeout_s=self.timeout,
                decide=self._decide,
                upstream=blocks.where,
                epoch=course.reading.epoch,
            )
        for batch in batches:
            blocks.check_process()
            yield source.num_over, delivery.pin(batch) if self.pin_memory else batch

    @property
    def _code(self) -> UserCode:
        return UserCode(code=self.dataset._code(), collate_fn=self.collate_fn)

    @property
    def _user_delivery(self) -> Delivery:
        """How rows reach the user's functions."""
        delivery = self.dataset._delivery
        return delivery.tracked() if self._code.code.maker.needs_tracks else delivery

    def _make_pool(self) -> Pool:
        return Pool(self._make_program(), self.seed, self._config)

    def _make_program(self) -> RowsProgram:
        return RowsProgram(
            self._code,
            self._user_delivery,
            needs_torch=self.dataset.format == "torch",
            dataset=self.dataset if self.worker_init_fn is not None else None,
            worker_init_fn=self.worker_init_fn,
        )

    def __repr__(self) -> str:
        return f"StreamingDataLoader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"
