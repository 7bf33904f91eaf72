"""Workers that are gone: their tasks go back, why they are gone is found out, and what cost too many is set aside."""

from __future__ import annotations

import time
from dataclasses import dataclass

from antifreeze.core import WorkerDied
from antifreeze.diagnosis import Cause, Finding, Restart, Skip
from antifreeze.ipc import Stage
from antifreeze.pool._failures import fault_error
from antifreeze.pool._history import History
from antifreeze.pool._messages import batch_of, lines_of
from antifreeze.pool._pool import Pool
from antifreeze.pool._task_sources import TaskSource
from antifreeze.pool._task_table import Poison, TaskTable
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.pool._worker_watch import WorkerWatch
from antifreeze.worker import Shard

_EXIT_S = 1.0
_IN_VAIN = 10


@dataclass(slots=True)
class _Lost:
    """A worker that is gone and whose exit has not been explained yet."""

    worker: WorkerHandle
    at: tuple[int, int, int] | None
    poison: Poison | None
    until_s: float
    code: int | None = None
    is_over: bool = False
    """Whether its exit code has come, or is waited for no longer."""


class WorkerFailures:
    """What an epoch does about lost workers. Called with the pool's lock held."""

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
        self._restarts = self._in_vain = 0
        self._began_s = time.monotonic()

    def came_back(self) -> None:
        """Note that work gets done: losses before it were not in vain."""
        self._in_vain = 0

    def lost(self, worker: WorkerHandle) -> None:
        """Put a lost worker's tasks back, and find out why it is gone."""
        record, worker.sample = worker.record, self._watch.sample(worker)  # Order: while its tasks are known
        at = None
        if record.stage.working and record.stage not in (Stage.STARTED, Stage.LOAD, Stage.INIT) and record.step >= 0:
            at = (record.step, record.position, int(record.stage))
        poison = self._task_table.lost(worker.slot, at)
        lost = _Lost(worker, at, poison, time.monotonic() + _EXIT_S)
        if worker.finding is not None:
            self._explain(lost, None)
        else:
            self._lost[worker.token] = lost
            self._pool.exits[worker.token] = lambda code: self._heard(worker.token, code)

    def lost_while_loading(self, pid: int, why: Finding) -> None:
        """Remember that the process which loads the payload for all workers was lost."""
        lines = (why.title, *why.evidence_lines)
        after_s = time.monotonic() - self._began_s
        self._history.restart(
            Restart(worker=-1, pid=pid, cause=why.cause.value, sample="", after_s=after_s, evidence=lines)
        )

    @property
    def unexplained(self) -> int:
        """How many workers are gone of which it is not known why. It is for a second at most."""
        return len(self._lost)

    def holds(self, slot: int) -> bool:
        """Tell whether a worker should get nothing yet: what its predecessor stood at may be poison."""
        return any(lost.poison is not None and lost.worker.slot == slot for lost in self._lost.values())

    def look(self, now_s: float) -> None:
        """Wait no longer to hear how a worker has ended than is good for those who wait for its task."""
        for token, lost in list(self._lost.items()):
            if now_s > lost.until_s:
                self._pool.exits.pop(token, None)
                self._heard(token, None)

    def retired(self, worker: WorkerHandle, finding: Finding) -> None:
        """Tell of a worker that is replaced when it has nothing to do."""
        self._watch.lost(worker, finding, self._began_s, "it had finished its batches, and is replaced")

    def _heard(self, token: int, code: int | None) -> None:
        lost = self._lost.get(token)
        if lost is not None:
            lost.code, lost.is_over = code, True
        # Order: as they were lost. The second at a place may end the epoch, and the first would never be told of.
        while self._lost and (first := next(iter(self._lost.values()))).is_over:
            del self._lost[first.worker.token]
            self._explain(first, first.code)

    def _explain(self, lost: _Lost, code: int | None) -> None:
        """A worker's end is known: say it, remember it, and decide about the task that it stood at."""
        worker, poison = lost.worker, lost.poison
        finding = self._watch.exit_of(worker, code)
        if finding.cause is Cause.ORPHANED:
            # It was lost with its fork server: neither its task nor its start is to blame.
            if lost.at is not None:
                self._task_table.forgive(lost.at)
            if poison is not None:
                self._task_table.again(poison.step, self._task_table.task(poison.step))
                poison = None
        else:
            self._pool.early_deaths[worker.slot] += worker.died_early
        self._restarts += 1
        self._in_vain += 1
        again, given_up = "its batches are made again by another worker", "it is the second worker lost there"
        self._watch.lost(worker, finding, self._began_s, again if poison is None else given_up)
        if poison is not None:
            self._poisoned(poison, worker, finding)
        too_often = self._in_vain > max(_IN_VAIN, 3 * self._pool.config.num_workers)
        if self._pool.cannot_start or too_often or self._restarts > self._pool.config.max_restarts:
            self._pool.fatal = self._hopeless(worker, finding)

    def _poisoned(self, poison: Poison, worker: WorkerHandle, finding: Finding) -> None:
        task = self._task_table.task(poison.step)
        place = self._watch.sample(worker)
        if poison.position < 0:
            place = self._source.name(task, batch_of(worker.record), -1)
        attempts = max(2, self._task_table.deaths(poison.step))
        error = fault_error(finding, worker=worker.name, step=poison.step, place=place, attempts=attempts)
        can_skip = poison.position >= 0 and not isinstance(task.what, Shard)
        if can_skip and self._pool.config.on_error == "skip":
            self._history.skip(Skip(sample=place, reason=error.message, epoch=self._number, step=poison.step))
            self._task_table.again(poison.step, task._replace(skip=(*task.skip, poison.position)))
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
            hint=finding.hint if start else f"{finding.hint} max_restarts= sets how many losses are healed",
            worker=worker.slot,
            cause=finding.cause.value,
        )
