"""One epoch over a pool: assigns tasks, delivers results in order, and retries the tasks of lost workers."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

from antifreeze.core import AntifreezeError, Location, NotPicklable, get_logger
from antifreeze.diagnosis import History, Skip
from antifreeze.distributed import Trouble
from antifreeze.ipc import Closed, Inbox, Packed, unpack
from antifreeze.pool._failures import Decide, can_go_on, timed_out, user_error
from antifreeze.pool._pool import Pool
from antifreeze.pool._prefetch import PrefetchTuner
from antifreeze.pool._task_sources import TaskSource
from antifreeze.pool._task_table import TaskTable
from antifreeze.pool._worker_handle import WorkerHandle, WorkerState
from antifreeze.pool._worker_watch import WorkerFailures, WorkerWatch
from antifreeze.worker import Result, Shard, Task, UserError, failure_of

logger = get_logger()

END = object()
"""Returned when there are no more batches. Not StopIteration: user code may raise that, and would end the epoch."""
_WAIT_INTERVAL_S = 0.2


class Batch(NamedTuple):
    """A batch that a worker has returned."""

    result: Result
    inbox: Inbox
    worker: WorkerHandle | None = None


class PoolEpoch:
    """Dispatches the tasks of one epoch. Every method except ``next`` needs the pool's lock."""

    def __init__(
        self,
        pool: Pool,
        source: TaskSource,
        task_table: TaskTable,
        tuner: PrefetchTuner,
        history: History,
        *,
        number: int,
        decide: Decide,
    ) -> None:
        self._pool, self._source, self._task_table, self._tuner = pool, source, task_table, tuner
        self.history, self._number, self._decide = history, number, decide
        self.run = next(pool.runs)
        """Number carried by this epoch's tasks, so that late results of earlier runs can be recognized."""
        self._watch = WorkerWatch(pool, source, task_table, history)
        self.began_s = self._watch.began_s
        self._failures = WorkerFailures(pool, source, task_table, self._watch, history, number)
        self.on_exit_code = self._failures.on_exit_code
        self._waiting_since_s: float | None = None
        self.checked_s = 0.0
        """When the workers were last checked."""
        self._exhausted = False
        for slot in range(pool.config.num_workers):
            self._end_shard(slot)

    # -- the trainer's thread --------------------------------------------------------------------------------------

    def next(self, timeout_s: float) -> Any:
        """Return the next batch, or ``END``, or raise an error that names the problem."""
        began_s = self._waiting_since_s = time.monotonic()
        try:
            while True:
                with self._pool.lock:
                    outcome = self._advance()
                    if isinstance(outcome, Batch):
                        return self._open(outcome)
                if outcome is END:
                    return END
                if isinstance(outcome, AntifreezeError):
                    self._raise(outcome)
                    continue
                if not any(worker.state is WorkerState.READY for worker in self._pool.present):
                    began_s = time.monotonic()  # startup does not count: imports may take longer than any batch
                if timeout_s and time.monotonic() - began_s > timeout_s:
                    at = [f"{worker.name} is at {self._watch.describe(worker)}" for worker in self._pool.present]
                    raise timed_out(timeout_s, at)
                self._pool.wait(_WAIT_INTERVAL_S)
        finally:
            self._waiting_since_s = None

    def _advance(self) -> Any:
        """Return a batch, an error or ``END``; None if the next batch is not ready."""
        pool, task_table = self._pool, self._task_table
        # If the next batch is ready and the workers have enough tasks, all that remains is to deliver it.
        if (
            not task_table.is_ready
            or 2 * (task_table.open - task_table.num_back) < self._tuner.quota * pool.config.num_workers
        ):
            pool.receive()
            if time.monotonic() - self.checked_s >= _WAIT_INTERVAL_S:
                self.check()
            self._fill()
            self.assign()
        while (outcome := task_table.take()) is not None:
            if not isinstance(outcome, Batch):
                return outcome
            self._source.consume(outcome.result)
            if outcome.result.packed is not None:
                return outcome
            self._fill()
            self.assign()
        if pool.fatal is not None:
            raise pool.fatal
        # Wait for the explanation of a worker lost at the very end, or it would be missing from the report.
        must_wait = pool.config.waits_for_all and self._is_any_starting()
        done = self._exhausted and not task_table.open and not must_wait and not self._failures.unexplained
        return END if done else None

    def _is_any_starting(self) -> bool:
        return any(m.state in (WorkerState.REQUESTED, WorkerState.LOADING) for m in self._pool.present)

    def _open(self, batch: Batch) -> Any:
        result = batch.result
        assert result.packed is not None  # noqa: S101  checked by _advance
        try:
            value = unpack(result.packed, batch.inbox)
        except Exception as error:
            failure = failure_of(UserError("rebuilding the batch in the trainer", error))
            who = batch.worker.name if batch.worker is not None else ""
            location = f"batch {result.step}, which has made it"
            raise user_error(failure, worker=who, step=result.step, location=location, original=error) from error
        self.history.delivered(result.num_samples, result.nbytes)
        return value

    def _raise(self, error: AntifreezeError) -> None:
        """Raise the error, unless ``on_error`` decides to skip the sample and continue."""
        if error.retry is None or not can_go_on(self._decide, error):
            raise error
        task, position = error.retry
        with self._pool.lock:
            sample = error.facts.get("sample") or self._source.name(task, "", position)
            self.history.skip(Skip(sample=sample, reason=error.message, epoch=self._number, step=task.step))
            # Order: it is the next one to be delivered, so it goes to the front.
            self._task_table.redo(task._replace(skip=(*task.skip, position)))
            self.assign()

    # -- tasks -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Take tasks from the source up to the prefetch quota."""
        room = self._tuner.quota * self._pool.config.num_workers
        while not self._exhausted and self._task_table.open < room:
            if self._task_table.open and not self._source.is_ready():
                return
            found = self._source.next()
            if found is None:
                self._exhausted = True
                return
            self._task_table.add(*found)
            if self._source.is_over(found[1]):
                self._task_table.fail(found[0].step, _ended(found[0]))

    def assign(self) -> None:
        """Send tasks to workers below their quota, a few to each in turn, so that neighbors are made in parallel.

        The least loaded worker comes first and no worker takes everything: otherwise one worker would hold two adjacent
        batches, its neighbor the next two, and both would repeatedly run out of tasks at the same time.
        """
        quota, load = self._tuner.quota, self._task_table.load
        max_tasks = max(1, quota // 2) if self._is_any_starting() else quota
        room, some = min(max_tasks, self._tuner.room), max(1, quota // 8)
        free = [m for m in self._pool.present if load(m.slot) + room <= max_tasks and self._can_work(m)]
        given: dict[int, list[Task]] = {}
        while free:
            for worker in sorted(free, key=lambda m: load(m.slot)):
                tasks = self._task_table.give(worker.slot, min(some, max_tasks - load(worker.slot)))
                if not tasks:
                    free.remove(worker)
                given.setdefault(worker.slot, []).extend(tasks)
        for worker in self._pool.present:
            prepared = [self._prepared(task, worker) for task in given.get(worker.slot, [])]
            tasks = [task for task in prepared if task is not None]
            if tasks:
                with contextlib.suppress(Closed):  # the next receive reports the loss
                    worker.send(tasks)

    def _can_work(self, worker: WorkerHandle) -> bool:
        if worker.state is not WorkerState.READY or worker.leak is not None:
            return False
        self._end_shard(worker.slot)
        return not self._failures.holds(worker.slot)

    def _prepared(self, task: Task, worker: WorkerHandle) -> Task | None:
        try:
            prepared = self._source.prepare(task._replace(run=self.run), worker)
        except Exception as error:  # noqa: BLE001  border: it calls the reducers of the user's indices
            problem = NotPicklable(
                f"cannot send the index {task.what!r:.200} to a worker: {type(error).__name__}: {error}",
                hint="make the sampler yield integers, strings or other picklable objects",
                path="sampler",
                step=task.step,
            )
            problem.__cause__ = error
            self._task_table.done(worker.slot, task.step, problem)
            return None
        if isinstance(prepared.what, Packed):
            self._tuner.sent(len(prepared.what.head or b"") + sum(piece.nbytes for piece in prepared.what.pieces))
        return prepared

    def on_result(self, slot: int, result: Result, worker: WorkerHandle) -> bool:
        """Record a result; return True if its batch will be delivered."""
        if result.run != self.run or not self._task_table.holds(slot, result.step):
            return False  # requested before an error or in an abandoned epoch, or already made by another worker
        self._failures.on_result()
        task = self._task_table.task(result.step)
        for skip in result.skipped:
            name = self._source.name(task, skip.sample, skip.position)
            self.history.skip(Skip(sample=name, reason=skip.reason, epoch=self._number, step=result.step))
        self.history.spent(dict(result.times))
        if result.slowest is not None and result.slowest.seconds > self.history.slowest_s:
            others = f" or one of {result.slowest.others} after it" if result.slowest.others else ""
            name = self._source.name(task, f"sample {result.slowest.sample}", result.slowest.position)
            self.history.slowest = (name + others, result.slowest.seconds)
        self._tuner.observe(sum(seconds for _, seconds in result.times), result.nbytes)
        outcome: Any = Batch(result, worker.inbox, worker)
        if result.failure is not None:
            location = self._source.location(task, result.failure.sample, result.failure.position)
            outcome = user_error(result.failure, worker=worker.name, step=result.step, location=location)
            if result.failure.can_skip and not isinstance(task.what, Shard):
                outcome.retry = (task, result.failure.position)
        # Order: the task table first. After an interrupt in between, the source knows less than it could, never more.
        self._task_table.done(slot, result.step, outcome)
        if result.end is not None:
            self._pool.shard_ends[slot] = result.end
        problem = self._source.came_back(task, result, slot)
        if problem is not None:
            self._task_table.fail(result.step, problem)
        self._end_shard(slot)
        return isinstance(outcome, Batch) and problem is None

    def on_worker_lost(self, worker: WorkerHandle) -> None:
        """Reassign the tasks of a lost worker."""
        self._failures.lost(worker)
        self.assign()

    def _end_shard(self, slot: int) -> None:
        """Complete the pending tasks of a shard that is exhausted: they return no batch."""
        if self._source.is_over(slot):
            for step in self._task_table.pinned(slot):
                self._task_table.fail(step, _ended(self._task_table.task(step)))

    # -- supervision -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Detect stalled, leaking and lost workers."""
        now_s = self.checked_s = time.monotonic()
        waiting_s = now_s - self._waiting_since_s if self._waiting_since_s is not None else 0.0
        for worker, finding in self._watch.judge(waiting_s):
            worker.kill(finding)
            self._pool.lose(worker)
        self._watch.find_leaks()
        # A worker that leaks gets no more tasks, and is replaced once it has returned those that it has.
        for worker in self._pool.present:
            if worker.leak is not None and not self._task_table.load(worker.slot):
                self._watch.lost(worker, worker.leak, "it had finished its batches and was replaced")
                self._pool.replace(worker)
        self._failures.check(now_s)

    @property
    def stall_limit_s(self) -> float | None:
        """The user's ``stall_limit_s``."""
        return self._pool.config.stall_limit_s

    def where(self) -> tuple[Location, Trouble | None]:
        """Return which worker the training loop is waiting for, and the last known stall. Needs no lock: read-only."""
        workers = [(m, m.record) for m in self._pool.present]
        busy = [(m, r) for m, r in workers if r.stage.working or self._task_table.load(m.slot)]
        if not busy:
            return Location(), self._watch.stalls.last()
        # The earliest batch is the one that is waited for. A worker that has no step yet is still starting.
        worker, record = min(busy, key=lambda pair: (pair[1].step < 0, pair[1].step, pair[1].since_s))
        return self._watch.place(worker, record), self._watch.stalls.last()


def _ended(task: Task) -> Batch:
    return Batch(Result(task.epoch, task.step, ended=True), Inbox())
