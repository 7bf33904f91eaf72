"""Which workers of a pool have stalled, leak or are lost: what is logged about them, and what becomes of their tasks.

A worker writes its progress into its heartbeat. While heartbeats move, nothing else is looked at; a worker that is
silent gets a ``ProcessWatch``, which is dropped when its heartbeat moves again. What to do is decided by
``diagnosis.decide``, which has no clock and no process.

The tasks of a lost worker are queued again at once, except one that may be poison: that waits until the exit code is
known, because a worker that was killed together with its fork server says nothing about its task.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, replace

from antifreeze.core import Location, WorkerDied, get_logger
from antifreeze.diagnosis import (
    Beat,
    Cause,
    Evidence,
    Finding,
    History,
    Restart,
    Skip,
    decide,
    find_cause,
    loading_s,
    oom_kills,
    parse_stack,
    rss_of,
    warn_after_s,
)
from antifreeze.distributed import Trouble
from antifreeze.ipc import Heartbeat, Stage
from antifreeze.pool._failures import evidence_lines, fault_error, lines_of, never_forked
from antifreeze.pool._pool import Pool
from antifreeze.pool._process_watch import LOOK_S, ProcessWatch, read_stacks
from antifreeze.pool._task_sources import TaskSource, text_of_sample
from antifreeze.pool._task_table import Poison, TaskTable
from antifreeze.pool._worker_handle import WorkerHandle, WorkerState
from antifreeze.worker import Shard

logger = get_logger()

_MEMORY_INTERVAL_S = 1.0
_AWAY_GRACE_S = 1.0
"""If workers were not judged for this long, it is our own process that was suspended."""
_MOVES_S = 1.5
"""A worker that made progress in this time is slow, not stuck."""
_NOISE_S = 0.01
"""CPU time that a worker's own threads, and our questions, cost it between two looks."""
_OVER_GRACE_S = 5.0
"""How long other ranks can still see a stall that is over."""
_EXIT_TIMEOUT_S = 1.0
_MAX_LOSSES_WITHOUT_PROGRESS = 10
_STARTING = (Stage.STARTED, Stage.LOAD, Stage.INIT)
_numbers = itertools.count(1)


@dataclass(slots=True)
class _Stall:
    token: int
    since_s: float
    trouble: Trouble
    batches: int
    """Number of batches delivered by then."""
    over_s: float | None = None


class Stalls:
    """The last stall that was reported, kept for a while so that other ranks can see it.

    Written with the pool's lock held; read by another thread, without it.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._last: _Stall | None = None

    def note(self, worker: WorkerHandle, record: Heartbeat, place: Location, finding: Finding) -> None:
        """Remember a worker that the trainer waits for. More is known of a stall the longer it lasts."""
        last, which = self._last, (worker.token, record.since_s)
        known = last is not None and which == (last.token, last.since_s)
        number = last.trouble.number if last is not None and known else next(_numbers)
        line = "" if finding.frame is None else str(finding.frame)
        trouble = Trouble(number, replace(place, line=line), finding.cause.value, finding.title)
        self._last = _Stall(*which, trouble, self._history.batches)

    def last(self) -> Trouble | None:
        """Return the last stall, until it has been over for a while: a batch was delivered since."""
        stall, now_s = self._last, time.monotonic()
        if stall is None:
            return None
        if self._history.batches > stall.batches:
            stall.over_s = now_s if stall.over_s is None else stall.over_s
            stall.trouble = stall.trouble._replace(over=True)
        return stall.trouble if stall.over_s is None or now_s - stall.over_s < _OVER_GRACE_S else None


class WorkerWatch:
    """Judges the workers of a pool. Called with the pool's lock held."""

    def __init__(self, pool: Pool, source: TaskSource, task_table: TaskTable, history: History) -> None:
        self._pool, self._limit_s = pool, pool.config.stall_limit_s
        self._source, self._task_table, self._history = source, task_table, history
        self._silent: dict[int, tuple[float, ProcessWatch]] = {}
        """The workers whose heartbeat does not move, by token: since when, and a watch for this silence."""
        self.stalls = Stalls(history)
        self._waiting_s = 0.0
        self._first_nbytes: dict[int, int] = {}
        self._oom_kills = oom_kills()
        self._memory_s = 0.0
        self.began_s = self._judged_s = self._back_s = time.monotonic()
        self.slowest_s = 0.0
        self.num_samples = 0

    def judge(self, waiting_s: float) -> list[tuple[WorkerHandle, Finding]]:
        """Return the workers to be replaced, and why; warn of those that keep the trainer waiting."""
        now_s, self._waiting_s = time.monotonic(), waiting_s
        if now_s - self._judged_s > _AWAY_GRACE_S:
            self._back_s = now_s
        self._judged_s = now_s
        beats, by_slot = [], {}
        for worker in self._pool.present:
            if worker.pid and worker.state in (WorkerState.LOADING, WorkerState.READY):
                by_slot[worker.slot] = worker
                beats.append(self._beat(worker, waiting_s, now_s))
        to_kill, to_warn_of = decide(beats, self._limit_s, self.slowest_s, self.num_samples)
        # Order: the cure first. To write a warning, evidence is gathered, and that takes time.
        stuck = [(by_slot[slot], self._find(by_slot[slot])) for slot in to_kill]
        for worker in (by_slot[slot] for slot in to_warn_of):
            record = worker.record
            finding = self._find(worker)
            if worker.record.since_s == record.since_s:  # else it has recovered meanwhile
                self._warn(worker, finding)
        return stuck

    def _beat(self, worker: WorkerHandle, waiting_s: float, now_s: float) -> Beat:
        record = worker.record
        self.slowest_s = max(self.slowest_s, record.slowest_s)
        self.num_samples = max(self.num_samples, record.num_samples)
        since_s = max(record.since_s, worker.asked_s, self._back_s)
        silent_s = now_s - since_s
        # A worker that calls itself idle while it has tasks does not run: it would have read them.
        working = record.stage.working or self._task_table.load(worker.slot) > 0
        if not working or silent_s < min(LOOK_S, warn_after_s(self._limit_s) / 4):
            self._silent.pop(worker.token, None)
            return Beat(worker=worker.slot, silent_s=silent_s, working=working)
        watch = self._observe(worker, record, now_s)
        if record.stage is Stage.LOAD and silent_s < loading_s(self._limit_s):
            # Imports are known to be slow: a cold disk, a large library. They are judged by whether they progress.
            silent_s = now_s - max(since_s, watch.moved_s)
        return Beat(
            worker=worker.slot,
            silent_s=silent_s,
            working=True,
            stopped=watch.state == "T",
            traced=watch.state == "t",
            moves=now_s - watch.moved_s < _MOVES_S,
            attempts=self._attempts(worker, record),
            waiting_s=waiting_s,
            warned=watch.warnings,
        )

    def _attempts(self, worker: WorkerHandle, record: Heartbeat) -> int:
        """Return how many workers its current task, or its start, has cost before."""
        if record.stage in _STARTING:
            return self._pool.early_exits[worker.slot]
        return self._task_table.num_losses(record.step)

    def _observe(self, worker: WorkerHandle, record: Heartbeat, now_s: float) -> ProcessWatch:
        since_s, watch = self._silent.get(worker.token, (0.0, None))
        if watch is None or since_s != record.since_s:
            watch = ProcessWatch(worker.pid, worker.stacks, noise_s=_NOISE_S)
            self._silent[worker.token] = record.since_s, watch
        watch.observe(now_s)
        return watch

    def _find(self, worker: WorkerHandle) -> Finding:
        return self._silent[worker.token][1].find_cause(worker.record.stage.name.lower())

    def _warn(self, worker: WorkerHandle, finding: Finding) -> None:
        self._silent[worker.token][1].warnings += 1
        record = worker.record
        silent_s = time.monotonic() - record.since_s
        text = (
            f"{worker.name} stalled for {silent_s:.0f} s at {self.describe(worker)}: it {finding.title}; "
            "the training loop waits for it"
        )
        logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.note(text)
        self.stalls.note(worker, record, self.place(worker, record), finding)

    def place(self, worker: WorkerHandle, record: Heartbeat) -> Location:
        """Return where a worker is. One that starts is not reported as still: whether it progresses is judged here."""
        starts = not worker.pid or record.stage in (Stage.STARTED, Stage.LOAD)
        still_s = 0.0 if starts else max(0.0, time.monotonic() - max(record.since_s, worker.asked_s))
        return Location(worker.name, record.stage.name.lower(), self.describe(worker), still_s)

    def exit_of(self, worker: WorkerHandle, code: int | None) -> Finding:
        """Return why a worker is gone."""
        if worker.finding is not None:
            return worker.finding
        if not worker.pid and code == os.EX_OSERR:
            return never_forked()
        kills = oom_kills()
        more, self._oom_kills = kills - self._oom_kills, kills
        return find_cause(
            Evidence(
                pid=worker.pid,
                exit_code=code,
                orphaned=code is None,
                oom_kills=more,
                stage=worker.record.stage.name.lower(),
                frames=parse_stack(read_stacks(worker.stacks)),
            )
        )

    def lost(self, worker: WorkerHandle, finding: Finding, rest: str) -> None:
        """Log that a worker was lost, and remember it."""
        record = worker.record
        self._history.memory.pop(worker.slot, None)
        _, watch = self._silent.pop(worker.token, (0.0, None))
        text = f"{worker.name} {finding.title} at {self.describe(worker)}; {rest}"
        if worker.finding is not None:
            silent_s = time.monotonic() - record.since_s
            if self._waiting_s:  # else no other rank is concerned
                self.stalls.note(worker, record, self.place(worker, record), finding)
            at, why = self.describe(worker), finding.title
            text = f"{worker.name} stalled for {silent_s:.1f} s at {at} and was killed: it {why}; {rest}"
        if watch is not None and watch.warnings:  # the evidence was logged with the warning
            logger.warning("antifreeze: %s", text)
        else:
            logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.restart(
            Restart(
                worker=worker.slot,
                pid=worker.pid,
                cause=finding.cause.value,
                sample=self.sample(worker),
                after_s=time.monotonic() - self.began_s,
                evidence=(finding.title, *finding.evidence_lines),
            )
        )

    def find_leaks(self) -> None:
        """Mark workers that hold more memory than the limit, and twice what they began with."""
        now_s, limit = time.monotonic(), self._pool.config.memory_limit
        if now_s - self._memory_s < _MEMORY_INTERVAL_S:
            return
        self._memory_s = now_s
        for worker in self._pool.present:
            if worker.state is not WorkerState.READY or not (nbytes := rss_of(worker.pid)):
                continue
            self._history.memory[worker.slot] = nbytes
            first = self._first_nbytes.setdefault(worker.token, nbytes)
            if limit is not None and nbytes > max(limit, 2 * first):
                grown = f"its memory grew from {first >> 20:,} MB to {nbytes >> 20:,} MB"
                lines = (grown, f"the limit is {limit >> 20:,} MB")
                worker.leak = Finding(cause=Cause.LEAK, evidence_lines=lines)

    def sample(self, worker: WorkerHandle) -> str:
        """Return the name of the sample that a worker is at, or was when it was lost; empty if it was at none."""
        if worker.sample is not None:
            return worker.sample
        record = worker.record
        sample = ""
        if record.position >= 0 and (record.sample >= 0 or record.name):
            sample = text_of_sample(record.name or record.sample)
        known = record.position >= 0 and self._task_table.has(record.step)
        return self._source.name(self._task_table.task(record.step), sample, record.position) if known else sample

    def describe(self, worker: WorkerHandle) -> str:
        """Return what a worker is at, or was, for messages."""
        record = worker.record
        match record.stage:
            case Stage.STARTED | Stage.LOAD:
                return "its start, where it rebuilds the dataset"
            case Stage.INIT:
                return "its start, in worker_init_fn"
            case Stage.IDLE:
                return "the beginning of its next batch"
            case _:
                sample, batch = self.sample(worker), _batch_of(record)
                return f"{sample} ({batch})" if sample else batch


def _batch_of(record: Heartbeat) -> str:
    """Return the batch that a worker was at, and what it did with all of it."""
    batch = f"batch {record.step}" if record.step >= 0 else "no batch"
    match record.stage:
        case Stage.COLLATE:
            return f"collating {batch}"
        case Stage.PACK | Stage.SEND:
            return f"sending {batch}"
        case _:
            return batch


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
        self._pool, self._source, self._task_table = pool, source, task_table
        self._watch, self._history, self._number = watch, history, number
        self._lost: dict[int, _Lost] = {}
        self._restarts = self._losses_without_progress = 0

    def on_result(self) -> None:
        """Record progress: the losses before it no longer count as consecutive."""
        self._losses_without_progress = 0

    def lost(self, worker: WorkerHandle) -> None:
        """Requeue a lost worker's tasks, and find out why it was lost."""
        record, worker.sample = worker.record, self._watch.sample(worker)  # Order: while its tasks are known
        at = None
        if record.stage.working and record.stage not in _STARTING and record.step >= 0:
            at = (record.step, record.position, int(record.stage))
        poison = self._task_table.lost(worker.slot, at)
        lost = _Lost(worker, at, poison, time.monotonic() + _EXIT_TIMEOUT_S)
        if worker.finding is not None:
            self._explain(lost, None)
        else:
            self._lost[worker.token] = lost

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
                self.on_exit_code(token, None)

    def on_exit_code(self, token: int, code: int | None) -> None:
        """Record how a worker exited, and explain the losses that are known up to here."""
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
        self._watch.lost(worker, finding, retried if poison is None else given_up)
        if poison is not None:
            self._poisoned(poison, worker, finding)
        too_often = self._losses_without_progress > max(_MAX_LOSSES_WITHOUT_PROGRESS, 3 * self._pool.config.num_workers)
        if self._pool.cannot_start or too_often or self._restarts > self._pool.config.max_restarts:
            self._pool.fatal = self._hopeless(worker, finding)

    def _poisoned(self, poison: Poison, worker: WorkerHandle, finding: Finding) -> None:
        task = self._task_table.task(poison.step)
        place = self._watch.sample(worker)
        if poison.position < 0:
            place = self._source.name(task, _batch_of(worker.record), -1)
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
        more = "" if start else " Set max_restarts= to change how many lost workers are replaced"
        return WorkerDied(
            f"workers were lost {why}; the last was {worker.name}, which {finding.title} "
            f"at {self._watch.describe(worker)}",
            lines=evidence_lines(finding),
            hint=f"{finding.hint}{more}",
            worker=worker.slot,
            cause=finding.cause.value,
        )
