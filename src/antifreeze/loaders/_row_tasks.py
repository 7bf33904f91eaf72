"""Rows that threads have decoded, on their way through worker processes that run the user's functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from antifreeze.datasets import Batch, Delivery, Moment, UserCode, row_batch, row_location
from antifreeze.decode import Blocks, Rebatcher, Release
from antifreeze.diagnosis import History
from antifreeze.loaders._inline import InlineRunner
from antifreeze.loaders._position import StreamingEpoch, StreamSettings
from antifreeze.pool import Decide, Pool, PoolCache, PoolConfig, PoolRunner, PrefetchTuner, TaskSource, WorkerHandle
from antifreeze.worker import Nothing, Result, Task, TaskContext, start_worker


class RowSlice(NamedTuple):
    """Some rows. The trainer keeps them until their batch has come back, so that it can be made again."""

    value: Any
    """A block in the trainer; what is sent of it, on the way to a worker."""
    start: int
    stop: int
    first: int
    """The position of the first of them among the rows of this rank."""
    epoch: int
    number: int
    """The number in the epoch of the first of them: what their random numbers depend on."""
    is_sent: bool = False


class RowsProgram:
    """Runs the user's functions on rows. Any worker can make any task at any time."""

    def __init__(
        self,
        code: UserCode,
        delivery: Delivery,
        *,
        needs_torch: bool,
        dataset: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        self._code, self._delivery = code, delivery
        self._dataset, self._worker_init_fn = dataset, worker_init_fn
        self.modules = ("torch",) if needs_torch else ()
        """What the fork server imports once for all workers."""

    def start(self, context: TaskContext, seed: int) -> None:
        """Run the user's ``worker_init_fn``."""
        start_worker(context, seed, self._dataset, self._worker_init_fn)

    def make(self, task: Task, context: TaskContext) -> Any:
        """Return the batch that the user's functions make of the rows."""
        rows: RowSlice = task.what
        context.seed(task.seed, rows.epoch, rows.number)
        block = self._delivery.received(rows.value) if rows.is_sent else rows.value
        moment = Moment(task.seed, rows.epoch, rows.number)
        given = row_batch(self._delivery, block, rows.start, rows.stop, moment, task.skip)
        batch = self._code.apply(given, context)
        if batch is None:
            raise Nothing
        return batch


class RowTasks(TaskSource):
    """One task for each batch that is cut from decoded rows. Any worker can run any of them."""

    def __init__(
        self,
        cuts: Rebatcher,
        hold: Callable[[int], Release],
        delivery: Delivery,
        epoch: StreamingEpoch,
        *,
        number: int,
    ) -> None:
        self._cuts, self._hold, self._delivery, self._epoch = cuts, hold, delivery, epoch
        self._number = number
        self._held: deque[tuple[int, Release]] = deque()
        """Steps that were not delivered, each with how to say that its rows wait no more."""
        self._step = self._first = 0
        self.num_over = 0
        """How many steps are over: those that were delivered, and those of which nothing was left to deliver."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task. May wait for the decoder, as long as it moves."""
        try:
            block, start, stop = next(self._cuts)
        except StopIteration:
            return None
        self._held.append((self._step, self._hold(stop - start)))
        reading = self._epoch.reading
        what = RowSlice(*block.detach(start, stop), self._first, reading.epoch, self._epoch.sample(self._first))
        task = Task(epoch=self._number, step=self._step, seed=reading.seed, what=what)
        self._first += stop - start
        self._step += 1
        return task, None

    def is_ready(self) -> bool:
        """True if decoded rows are at hand."""
        return self._cuts.is_ready()

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Copy the rows into memory that the worker can see."""
        rows: RowSlice = task.what
        value = self._delivery.sendable(rows.value, rows.start, rows.stop)
        return worker.packed(task, rows._replace(value=value, start=0, stop=rows.stop - rows.start, is_sent=True))

    def consume(self, result: Result) -> None:
        """Count the steps, and no longer the rows of those that are over."""
        self.num_over = result.step + 1
        while self._held and self._held[0][0] <= result.step:
            self._held.popleft()[1]()

    def name(self, task: Task, sample: str, position: int) -> str:  # noqa: ARG002
        """Return which row, or which rows, something is about, as text."""
        steps = self._epoch.steps
        step = steps.first // steps.global_batch + task.step
        return row_location(self._epoch.name, task.what.first, step, position)

    def location(self, task: Task, sample: str, position: int) -> str:
        """Return the batch and the row; the name of a whole batch says which batch it is."""
        name = self.name(task, sample, position)
        return f"batch {task.step}, {name}" if position >= 0 else name


class RowWorkers:
    """Who runs the user's functions on rows: worker processes, or this thread."""

    def __init__(
        self, history: History, *, decide: Decide, persistent: bool, prefetch_factor: int | None, **config: Any
    ) -> None:
        self._history, self._decide = history, decide
        self._config = PoolConfig(dataset="StreamingDataset", **config)
        self._tuner = PrefetchTuner(prefetch_factor)
        self._pool_cache = PoolCache(persistent=persistent)
        self._number = 0

    def facts(self) -> dict[str, Any]:
        """Return what a report says of how workers start."""
        return self._pool_cache.facts()

    def prestart(self, settings: StreamSettings, code: UserCode) -> None:
        """Start the processes that workers are forked from, in the background."""
        self._pool_cache.prestart(_program_of(settings, code))

    def batches(
        self, settings: StreamSettings, code: UserCode, blocks: Blocks, rebatcher: Rebatcher, epoch: StreamingEpoch
    ) -> Iterator[tuple[int, Batch]]:
        """Yield what the user's functions make of the rows, each batch with the number of steps that are over."""
        delivery, make_program = settings.dataset.row_source.delivery, partial(_program_of, settings, code)
        self._number += 1
        source = RowTasks(rebatcher, blocks.hold, delivery, epoch, number=self._number)
        if settings.num_workers == 0:
            runner: Iterator[Batch] = InlineRunner(
                make_program, source, self._history, on_error=self._config.on_error, decide=self._decide
            )
        else:
            runner = PoolRunner(
                self._pool_cache,
                lambda: Pool(make_program(), settings.seed, self._config),
                source,
                self._tuner,
                self._history,
                number=self._number,
                num_workers=settings.num_workers,
                in_order=True,
                timeout_s=settings.timeout,
                decide=self._decide,
                upstream=blocks.where,
                epoch=epoch.reading.epoch,
            )
        for batch in runner:
            blocks.check_process()
            yield source.num_over, delivery.pin(batch) if settings.pin_memory else batch


def _program_of(settings: StreamSettings, code: UserCode) -> RowsProgram:
    return RowsProgram(
        code,
        settings.dataset.row_source.delivery,
        needs_torch=settings.dataset.format == "torch",
        dataset=settings.dataset if settings.worker_init_fn is not None else None,
        worker_init_fn=settings.worker_init_fn,
    )
