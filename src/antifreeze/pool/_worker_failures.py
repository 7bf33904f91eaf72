"""Handling of lost workers: requeues their tasks, finds the cause, and sets poison samples aside."""

from __future__ import annotations

import time
from dataclasses import dataclass

from antifreeze.core import WorkerDied
from antifreeze.diagnosis import Cause, Finding, History, Restart, Skip
from antifreeze.ipc import Stage
from antifreeze.pool._failures import fault_error
from antifreeze.pool._messages import batch_of, lines_of
from antifreeze.pool._pool import Pool
from antifreeze.pool._task_sources import TaskSource
from antifreeze.pool._task_table import Poison, TaskTable
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.pool._worker_watch import WorkerWatch
from antifreeze.worker import Shard

_EXIT_TIMEOUT_S = 1.0
_MAX_LOSSES_WITHOUT_PROGRESS = 10


@dataclass(slots=True)
class _Lost:
    """A lost worker whose exit has not been explained yet."""

    worker: WorkerHandle
    at: tuple[int, int, int] | None
    poison: Poison | None
    until_s: float
    code: int | None = None
    is_over: bool = False
    """Whether its exit code is known, or waiting for it timed out."""


class WorkerFailures:
    """Handles the lost workers of one epoch. Called with the pool's lock held."""

    def __init__(
        self, pool: Pool, source: TaskSource, task_table: TaskTable, watch: WorkerWatch, history: History, number: int
    ) -> None:
        self._pool, self._source, self._task_table, self._watch, self._history = (
            pool,
            source,
            task_table,
            watch,
            history,
        )
        self._number = number
        self._lost: dict[int, _Lost] = {}
        self._restarts = self._losses_without_progress = 0
        self._began_s = time.monotonic()

    def on_result(self) -> None:
        """Record progress: the losses before it no longer count as consecutive."""
        self._losses_without_progress = 0

    def lost(self, worker: WorkerHandle) -> None:
        """Requeue a lost worker's tasks, and find out why it was lost."""
        record, worker.sample = worker.record, self._watch.sample(worker)  # Order: while its tasks are known
        at = None
        if record.stage.working and record.stage not in (Stage.STARTED, Stage.LOAD, Stage.INIT) and record.step >= 0:
            at = (record.step, record.position, int(record.stage))
        poison = self._task_table.lost(worker.slot, at)
        lost = _Lost(worker, at, poison, time.monotonic() + _EXIT_TIMEOUT_S)
        if worker.finding is not None:
            self._explain(lost, None)
        else:
            self._lost[worker.token] = lost
            self._pool.exits[worker.token] = lambda code: self._on_exit_code(worker.token, code)

    def on_loading_process_lost(self, pid: int, why: Finding) -> None:
        """Record the loss of the process that loads the payload for all workers."""
        lines = (why.title, *why.evidence_lines)
        after_s = time.monotonic() - self._began_s
        self._history.restart(
            Restart(worker=-1, pid=pid, cause=why.cause.value, sample="", after_s=after_s, evidence=lines)
        )

    @property
    def unexplained(self) -> int:
        """Number of lost workers whose cause is not known yet; each for at most a second."""
        return len(self._lost)

    def holds(self, slot: int) -> bool:
        """Return True if a worker should get no task yet: what its predecessor was processing may be poison."""
        return any(lost.poison is not None and lost.worker.slot == slot for lost in self._lost.values())

    def check(self, now_s: float) -> None:
        """Stop waiting for exit codes that are overdue: the training loop may be waiting for the task."""
        for token, lost in list(self._lost.items()):
            if now_s > lost.until_s:
                self._pool.exits.pop(token, None)
                self._on_exit_code(token, None)

    def retired(self, worker: WorkerHandle, finding: Finding) -> None:
        """Report a leaking worker that is replaced while idle."""
        self._watch.lost(worker, finding, self._began_s, "it had finished its batches and was replaced")

    def _on_exit_code(self, token: int, code: int | None) -> None:
        lost = self._lost.get(token)
        if lost is not None:
            lost.code, lost.is_over = code, True
        # Order: as they were lost. The second loss at a sample may end the epoch; the first is reported before it.
        while self._lost and (first := next(iter(self._lost.values()))).is_over:
            del self._lost[first.worker.token]
            self._explain(first, first.code)

    def _explain(self, lost: _Lost, code: int | None) -> None:
        """Report and record why a worker was lost, and decide about the task it was processing."""
        worker, poison = lost.worker, lost.poison
        finding = self._watch.exit_of(worker, code)
        if finding.cause is Cause.ORPHANED:
            # It was killed together with its fork server: neither its task nor its startup is to blame.
            if lost.at is not None:
                self._task_table.forgive(lost.at)
            if poison is not None:
                self._task_table.retry(poison.step, self._task_table.task(poison.step))
                poison = None
        else:
            self._pool.early_exits[worker.slot] += worker.exited_early
        self._restarts += 1
        self._losses_without_progress += 1
        retried, given_up = "another worker redoes its batches", "it is the second worker lost there"
        self._watch.lost(worker, finding, self._began_s, retried if poison is None else given_up)
        if poison is not None:
            self._poisoned(poison, worker, finding)
        too_often = self._losses_without_progress > max(_MAX_LOSSES_WITHOUT_PROGRESS, 3 * self._pool.config.num_workers)
        if self._pool.cannot_start or too_often or self._restarts > self._pool.config.max_restarts:
            self._pool.fatal = self._hopeless(worker, finding)

    def _poisoned(self, poison: Poison, worker: WorkerHandle, finding: Finding) -> None:
        task = self._task_table.task(poison.step)
        place = self._watch.sample(worker)
        if poison.position < 0:
            place = self._source.name(task, batch_of(worker.record), -1)
        attempts = max(2, self._task_table.num_losses(poison.step))
        error = fault_error(finding, worker=worker.name, step=poison.step, place=place, attempts=attempts)
        can_skip = poison.position >= 0 and not isinstance(task.what, Shard)
        if can_skip and self._pool.config.on_error == "skip":
            self._history.skip(Skip(sample=place, reason=error.message, epoch=self._number, step=poison.step))
            self._task_table.retry(poison.step, task._replace(skip=(*task.skip, poison.position)))
            return
        if can_skip:
            error.retry = (task, poison.position)
        self._task_table.fail(poison.step, error)
        self._source.give_up(worker.slot)

    def _hopeless(self, worker: WorkerHandle, finding: Finding) -> WorkerDied:
        start = self._pool.cannot_start
        why = "before they could start" if start else f"{self._restarts} times in this epoch"
        return WorkerDied(
            f"workers were lost {why}; the last was {worker.name}, which {finding.title} "
            f"at {self._watch.describe(worker)}{lines_of(finding)}",
            hint=finding.hint
            if start
            else f"{finding.hint} Set max_restarts= to change how many lost workers are replaced",
            worker=worker.slot,
            cause=finding.cause.value,
        )
