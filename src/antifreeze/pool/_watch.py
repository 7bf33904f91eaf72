"""Looking at workers from outside: what their records and their processes say, and what follows from it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from antifreeze.core import get_logger
from antifreeze.diagnosis import (
    Beat,
    Cause,
    Counters,
    Evidence,
    Finding,
    Kill,
    ProcSnapshot,
    Restart,
    StallLimits,
    decide,
    evidence_of,
    find_cause,
    loading_s,
    oom_kills,
    parse_stack,
    read_counters,
    read_proc,
    rss_of,
    warn_after_s,
)
from antifreeze.distributed import Location
from antifreeze.ipc import Heartbeat, Stage
from antifreeze.pool._failures import never_forked
from antifreeze.pool._history import History
from antifreeze.pool._messages import batch_of, lines_of
from antifreeze.pool._stalls import Stalls
from antifreeze.pool._worker_handle import WorkerHandle, WorkerState

logger = get_logger()

_SOON_S = 0.3
_GLANCE_S = 0.5
_MEMORY_S = 1.0
_AWAY_S = 1.0

Found = tuple[WorkerHandle, Finding]


class Charge(NamedTuple):
    """What a worker has been given."""

    tasks: int
    attempts: int
    """How many workers the task that it is at has cost before."""


@dataclass(slots=True)
class _Sight:
    """What was seen of one worker's process."""

    counters: Counters | None
    snapshot: ProcSnapshot
    at_s: float
    moved_s: float
    warned_of: float = -1.0
    warnings: int = 0


class Watch:
    """Observes the workers of a pool. Costs next to nothing while they move: only the silent are looked at."""

    def __init__(self, limits: StallLimits, history: History, name: Callable[[Heartbeat], str]) -> None:
        self._limits, self._history, self._name = limits, history, name
        self._sights: dict[int, _Sight] = {}
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
        if now_s - self._judged_s > _AWAY_S:
            # It is us who stood still: a call that held the interpreter's lock, a laptop that slept.
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
            elif worker.record.since_s == record.since_s:  # else it has gone on while it was looked at
                self._warn(worker, finding)
        return stuck

    def _beat(self, worker: WorkerHandle, charge: Charge, waiting_s: float, now_s: float) -> Beat:
        record = worker.record
        self.slowest_s = max(self.slowest_s, record.slowest_s)
        self.num_samples = max(self.num_samples, record.num_samples)
        since_s = max(record.since_s, worker.asked_s, self._back_s)
        silent_s = now_s - since_s
        # Who says that it is idle while it has tasks does not run: it would have read them.
        working = record.stage.working or charge.tasks > 0
        if not working or silent_s < min(_GLANCE_S, warn_after_s(self._limits) / 4):
            self._sights.pop(worker.token, None)
            return Beat(worker=worker.slot, silent_s=silent_s, working=working)
        sight = self._seen(worker, now_s)
        if sight.warned_of != record.since_s:
            sight.warned_of, sight.warnings = record.since_s, 0
        if record.stage is Stage.LOAD and silent_s < loading_s(self._limits):
            # Imports are known to be slow: a cold disk, a large library. They are judged by whether they move.
            silent_s = now_s - max(since_s, sight.moved_s)
        state = sight.counters.state if sight.counters else ""
        return Beat(
            worker=worker.slot,
            silent_s=silent_s,
            working=True,
            stopped=state == "T",
            traced=state == "t",
            moves=now_s - sight.moved_s < 1.5,
            attempts=charge.attempts,
            waiting_s=waiting_s,
            warned=sight.warnings,
        )

    def _seen(self, worker: WorkerHandle, now_s: float) -> _Sight:
        sight = self._sights.get(worker.token)
        if sight is None:
            sight = self._sights[worker.token] = _Sight(read_counters(worker.pid), read_proc(worker.pid), now_s, now_s)
        elif now_s - sight.at_s >= _GLANCE_S:
            before, after = sight.counters, read_counters(worker.pid)
            if before and after and (after.cpu_s > before.cpu_s + 0.01 or after.moved_bytes > before.moved_bytes):
                sight.moved_s = now_s
            sight.counters, sight.snapshot, sight.at_s = after, read_proc(worker.pid), now_s
        return sight

    def _find(self, worker: WorkerHandle) -> Finding:
        """Return why a silent worker stands still. Takes up to half a second: it is asked for its stacks."""
        sight = self._sights[worker.token]
        state = sight.counters.state if sight.counters else ""
        frames = () if state in ("T", "t", "D", "Z") else parse_stack(worker.ask_for_stacks())
        interval_s = time.monotonic() - sight.at_s
        if interval_s < _SOON_S:
            time.sleep(_SOON_S - interval_s)
            interval_s = _SOON_S
        known = {"stage": worker.record.stage.name.lower(), "frames": frames}
        return find_cause(
            evidence_of(
                worker.pid,
                sight.counters,
                read_counters(worker.pid),
                interval_s,
                sight.snapshot,
                read_proc(worker.pid),
                **known,
            )
        )

    def _warn(self, worker: WorkerHandle, finding: Finding) -> None:
        self._sights[worker.token].warnings += 1
        record = worker.record
        silent_s = time.monotonic() - record.since_s
        text = (
            f"{worker.name} has been at {self.words(worker)} for {silent_s:.0f} s and {finding.title}; "
            "the training loop waits for it"
        )
        logger.warning("antifreeze: %s%s\n  hint: %s", text, lines_of(finding), finding.hint)
        self._history.note(text)
        self.stalls.note(worker, record, self.place(worker, record), finding)

    def place(self, worker: WorkerHandle, record: Heartbeat) -> Location:
        """Return where a worker stands, in words. One that starts takes its time: whether it moves is judged here."""
        starts = not worker.pid or record.stage in (Stage.STARTED, Stage.LOAD)
        still_s = 0.0 if starts else max(0.0, time.monotonic() - max(record.since_s, worker.asked_s))
        return Location(worker.name, record.stage.name.lower(), self.words(worker), still_s)

    def exit_of(self, worker: WorkerHandle, code: int | None) -> Finding:
        """Return why a worker is gone."""
        if worker.finding is not None:
            return worker.finding
        if not worker.pid and code == os.EX_OSERR:
            return never_forked()
        kills = oom_kills()
        more, self._oom_kills = kills - self._oom_kills, kills
        known: dict[str, Any] = {"stage": worker.record.stage.name.lower(), "frames": parse_stack(worker.read_stacks())}
        return find_cause(Evidence(pid=worker.pid, exit_code=code, orphaned=code is None, oom_kills=more, **known))

    def lost(self, worker: WorkerHandle, finding: Finding, since_s: float, rest: str) -> None:
        """Tell people that a worker was lost, and remember it."""
        record = worker.record
        self._history.memory.pop(worker.slot, None)
        warned = self._sights.pop(worker.token, None)
        text = f"{worker.name} {finding.title} at {self.words(worker)}; {rest}"
        if worker.finding is not None and finding.cause is not Cause.LEAK:
            silent_s = time.monotonic() - record.since_s
            if self._waiting_s:  # else it is nobody else's concern
                self.stalls.note(worker, record, self.place(worker, record), finding)
            text = f"{worker.name} was stuck at {self.words(worker)} for {silent_s:.1f} s ({finding.title}); {rest}"
        if warned is not None and warned.warnings:  # all the rest was said then
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
        """Return workers that have taken more than their share of memory, twice what they began with."""
        now_s = time.monotonic()
        if now_s - self._memory_s < _MEMORY_S:
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
        """Return the sample that a worker is at, or was when it was lost, in words; nothing if it was at none."""
        return self._name(worker.record) if worker.sample is None else worker.sample

    def words(self, worker: WorkerHandle) -> str:
        """Return what a worker is at, or was, in words."""
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
