"""Which workers of a pool have stalled, leak or are lost: what is logged about them, and which are to be replaced.

A worker writes its progress into its heartbeat. While heartbeats move, nothing else is looked at; a worker that is
silent gets a ``ProcessWatch``, which is dropped when its heartbeat moves again. What to do is decided by
``diagnosis.decide``, which has no clock and no process.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from antifreeze.core import Location, get_logger
from antifreeze.diagnosis import (
    Beat,
    Cause,
    Evidence,
    Finding,
    History,
    Kill,
    Restart,
    StallLimits,
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
from antifreeze.pool._failures import never_forked
from antifreeze.pool._messages import batch_of, lines_of
from antifreeze.pool._process_watch import LOOK_S, ProcessWatch
from antifreeze.pool._worker_handle import WorkerHandle, WorkerState

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
_numbers = itertools.count(1)

Found = tuple[WorkerHandle, Finding]


class Charge(NamedTuple):
    """What a worker has been given."""

    tasks: int
    attempts: int
    """How many workers its current task has cost before."""


@dataclass(slots=True)
class _Silence:
    """A worker whose heartbeat does not move."""

    watch: ProcessWatch
    since_s: float
    """The heartbeat that the warnings were about."""
    warnings: int = 0


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

    def __init__(self, limits: StallLimits, history: History, name: Callable[[Heartbeat], str]) -> None:
        self._limits = limits
        self._history = history
        self._name = name
        self._silent: dict[int, _Silence] = {}
        self.stalls = Stalls(history)
        self._waiting_s = 0.0
        self._first_nbytes: dict[int, int] = {}
        self._oom_kills = oom_kills()
        self._memory_s = 0.0
        self._judged_s = self._back_s = time.monotonic()
        self.slowest_s = 0.0
        self.num_samples = 0

    def judge(self, workers: Iterable[WorkerHandle], charges: dict[int, Charge], waiting_s: float) -> list[Found]:
        """Return the workers to be replaced, and why; warn of those that keep the trainer waiting."""
        now_s, self._waiting_s = time.monotonic(), waiting_s
        if now_s - self._judged_s > _AWAY_GRACE_S:
            self._back_s = now_s
        self._judged_s = now_s
        beats, by_slot = [], {}
        for worker in workers:
            if worker.pid and worker.state in (WorkerState.LOADING, WorkerState.READY):
                by_slot[worker.slot] = worker
                beats.append(self._beat(worker, charges[worker.slot], waiting_s, now_s))
        stuck = []
        for decision in decide(beats, self._limits, self.slowest_s, self.num_samples):
            worker = by_slot[decision.worker]
            record = worker.record
            finding = self._find(worker)
            if isinstance(decision, Kill):
                stuck.append((worker, finding))
            elif worker.record.since_s == record.since_s:  # else it has recovered meanwhile
                self._warn(worker, finding)
        return stuck

    def _beat(self, worker: WorkerHandle, charge: Charge, waiting_s: float, now_s: float) -> Beat:
        record = worker.record
        self.slowest_s = max(self.slowest_s, record.slowest_s)
        self.num_samples = max(self.num_samples, record.num_samples)
        since_s = max(record.since_s, worker.asked_s, self._back_s)
        silent_s = now_s - since_s
        # A worker that calls itself idle while it has tasks does not run: it would have read them.
        working = record.stage.working or charge.tasks > 0
        if not working or silent_s < min(LOOK_S, warn_after_s(self._limits) / 4):
            self._silent.pop(worker.token, None)
            return Beat(worker=worker.slot, silent_s=silent_s, working=working)
        silence = self._observe(worker, record, now_s)
        watch = silence.watch
        if record.stage is Stage.LOAD and silent_s < loading_s(self._limits):
            # Imports are known to be slow: a cold disk, a large library. They are judged by whether they progress.
            silent_s = now_s - max(since_s, watch.moved_s)
        return Beat(
            worker=worker.slot,
            silent_s=silent_s,
            working=True,
            stopped=watch.state == "T",
            traced=watch.state == "t",
            moves=now_s - watch.moved_s < _MOVES_S,
            attempts=charge.attempts,
            waiting_s=waiting_s,
            warned=silence.warnings,
        )

    def _observe(self, worker: WorkerHandle, record: Heartbeat, now_s: float) -> _Silence:
        silence = self._silent.get(worker.token)
        if silence is None:
            watch = ProcessWatch(worker.pid, worker.stacks, noise_s=_NOISE_S)
            silence = self._silent[worker.token] = _Silence(watch, record.since_s)
        silence.watch.observe(now_s)
        if silence.since_s != record.since_s:
            silence.since_s, silence.warnings = record.since_s, 0
        return silence

    def _find(self, worker: WorkerHandle) -> Finding:
        return self._silent[worker.token].watch.find_cause(worker.record.stage.name.lower())

    def _warn(self, worker: WorkerHandle, finding: Finding) -> None:
        self._silent[worker.token].warnings += 1
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
                frames=parse_stack(worker.read_stacks()),
            )
        )

    def lost(self, worker: WorkerHandle, finding: Finding, since_s: float, rest: str) -> None:
        """Log that a worker was lost, and remember it."""
        record = worker.record
        self._history.memory.pop(worker.slot, None)
        silence = self._silent.pop(worker.token, None)
        text = f"{worker.name} {finding.title} at {self.describe(worker)}; {rest}"
        if worker.finding is not None and finding.cause is not Cause.LEAK:
            silent_s = time.monotonic() - record.since_s
            if self._waiting_s:  # else no other rank is concerned
                self.stalls.note(worker, record, self.place(worker, record), finding)
            at, why = self.describe(worker), finding.title
            text = f"{worker.name} stalled for {silent_s:.1f} s at {at} and was killed: it {why}; {rest}"
        if silence is not None and silence.warnings:  # the evidence was logged with the warning
            logger.warning("antifreeze: %s", text)
        else:
            logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.restart(
            Restart(
                worker=worker.slot,
                pid=worker.pid,
                cause=finding.cause.value,
                sample=self.sample(worker),
                after_s=time.monotonic() - since_s,
                evidence=(finding.title, *finding.evidence_lines),
            )
        )

    def leaking(self, workers: Iterable[WorkerHandle], limit: int | None) -> list[Found]:
        """Return workers that hold more memory than the limit, and twice what they began with."""
        now_s = time.monotonic()
        if now_s - self._memory_s < _MEMORY_INTERVAL_S:
            return []
        self._memory_s = now_s
        found = []
        for worker in workers:
            nbytes = rss_of(worker.pid) if worker.pid and worker.state is WorkerState.READY else 0
            if not nbytes:
                continue
            self._history.memory[worker.slot] = nbytes
            first = self._first_nbytes.setdefault(worker.token, nbytes)
            if limit is not None and nbytes > max(limit, 2 * first):
                grown = f"its memory grew from {first >> 20:,} MB to {nbytes >> 20:,} MB"
                lines = (grown, f"the limit is {limit >> 20:,} MB")
                found.append((worker, Finding(cause=Cause.LEAK, evidence_lines=lines)))
        return found

    def sample(self, worker: WorkerHandle) -> str:
        """Return the name of the sample that a worker is at, or was when it was lost; empty if it was at none."""
        return self._name(worker.record) if worker.sample is None else worker.sample

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
                sample, batch = self.sample(worker), batch_of(record)
                return f"{sample} ({batch})" if sample else batch
