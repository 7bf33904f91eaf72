"""From what was seen to a verdict: is the job healthy, slow or stuck, who holds it up, and why. Pure.

What is asked, in this order:

1. What does each training process do: wait for its workers, for the other ranks, or run its own code?
2. If it waits for its workers and no batch comes: which of them stand still, and why? If all of them are idle, then
   what it waits for was lost. If one of them moves, the job is slow.
3. If it waits for the other ranks: which rank is elsewhere? That one holds up the rest.
4. Else it is its own line that stands still, or nothing does.

Stuck is said only of what cannot end by itself, or of what has not moved for the whole time and has no limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from antifreeze.core import clean_lines, one_line
from antifreeze.diagnosis import Cause, Finding, is_ours, user_frames
from antifreeze.doctor.job._diagnosis import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._job_messages import (
    missing,
    name_of,
    share_of_waiting,
    summary,
    where_time_goes,
    with_places,
)
from antifreeze.doctor.job._lost_batch import lost
from antifreeze.doctor.job._observation import Observation
from antifreeze.doctor.job._process_activity import OPEN_END_S, ProcessActivity, stand
from antifreeze.doctor.job._resource_limits import last_threads, more_lines
from antifreeze.doctor.job._roles import Doing, Job, find_jobs

_BLIND_S = 60.0
"""The same where no Python lines can be seen, so that it may be a sleep."""
_LONG_S = 300.0
"""Who still moves, or sleeps, is called stuck only when it takes this long."""
_TURN_S = 2.0
"""Whoever waits for nobody is told from whoever waits for threads that work by looking for this long."""
_FOR_EVER = frozenset({Cause.FORK, Cause.STOPPED, Cause.FULL_PIPE, Cause.RANK})
"""What does not end by itself."""
_PEOPLE = frozenset({Cause.TRACED, Cause.INPUT})
"""What ends when a person wants it to."""
_HELD = frozenset({Cause.STOPPED, Cause.TRACED, Cause.DEAD_DISK, Cause.OUT_OF_MEMORY})
"""What can be done to a process that is idle."""
_SHOWN = frozenset({Cause.STOPPED, Cause.TRACED, Cause.OUT_OF_MEMORY})
"""What is certain without Python lines."""
_CERTAIN = _SHOWN | {Cause.FULL_PIPE, Cause.FORK, Cause.DEAD_DISK}
_OPEN = frozenset(
    {Cause.NETWORK, Cause.CHILD, Cause.FILE, Cause.LOCK, Cause.UNKNOWN, Cause.SLEEPING, Cause.STARTUP, Cause.FORK}
) | {Cause.OUT_OF_MEMORY}
_MOVING = frozenset({Cause.BUSY, Cause.RETRYING, Cause.STARTUP})
_ORDER = (Verdict.STUCK, Verdict.SLOW, Verdict.HEALTHY)
_MAX_SUMMARY_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class _Part:
    """One training process, judged by itself."""

    job: Job
    verdict: Verdict
    trainer: ProcessActivity
    suspects: tuple[Suspect, ...] = ()
    sure: bool = True

    @property
    def in_collective(self) -> bool:
        return self.trainer.always(Doing.COLLECTIVE)


def judge(seen: Observation) -> Diagnosis:
    """Return what was found out."""
    last = seen.snapshots[-1]
    root = last.find(seen.root) or last.processes[0]
    jobs = find_jobs(last) or (Job(root.pid, (), root.rank),)
    parts = [_judge_part(seen, job, several=len(jobs) > 1) for job in jobs]
    # The rank that is not where the others wait holds them up.
    elsewhere = [part for part in parts if not part.in_collective]
    first = sorted(elsewhere or parts, key=lambda part: _ORDER.index(part.verdict))
    ordered = [*first, *(part for part in parts if part not in first)]
    verdict = min((part.verdict for part in parts), key=_ORDER.index)
    if verdict is Verdict.STUCK and first[0].verdict is not Verdict.STUCK:
        verdict = Verdict.SLOW  # the others wait for one that moves
    suspects = tuple(suspect for part in ordered for suspect in part.suspects)
    if len(parts) > 1:
        suspects = with_places(suspects, [(part.job, part.trainer) for part in parts])
    standings = [(part.job, part.trainer) for part in ordered]
    workers = [worker for part in ordered for worker in _living(seen, part.job).values()]
    looked_s = last.at_s - seen.snapshots[0].at_s
    return Diagnosis(
        verdict=verdict,
        summary=one_line(summary(verdict, suspects, standings, looked_s + seen.still_s), _MAX_SUMMARY_CHARS),
        suspects=suspects,
        notes=tuple(clean_lines([*where_time_goes(standings, workers), *missing(seen)], _MAX_SUMMARY_CHARS)),
        sure=all(part.sure for part in parts),
        looked_s=looked_s,
    )


def _judge_part(seen: Observation, job: Job, *, several: bool) -> _Part:
    trainer = stand(seen, job.trainer, job.workers)
    if trainer.finding.cause in (Cause.STOPPED, Cause.TRACED):
        return _own(seen, job, trainer)
    if seen.machine.group.waits and (starved := _starved(seen, job, trainer)):
        return starved
    waits = trainer.always(Doing.DATA, Doing.STARTS, Doing.ENDS)
    blind = trainer.always(Doing.UNKNOWN) and not trainer.moves and bool(job.workers)
    if (waits or blind) and not _batches_come(seen, job, trainer):
        return _without_batches(seen, job, trainer, blind=blind)
    if trainer.always(Doing.COLLECTIVE) and not trainer.moves and several:
        suspect = _suspect(seen, trainer, name_of(job), cause=Cause.RANK)
        return _Part(job, Verdict.STUCK if trainer.still_s >= OPEN_END_S else Verdict.SLOW, trainer, (suspect,), False)
    if not (trainer.moves or waits or trainer.always(Doing.CHILDREN)):
        return _own(seen, job, trainer)
    slow = share_of_waiting(trainer) >= 0.5 and bool(job.workers)
    return _Part(job, Verdict.SLOW if slow else Verdict.HEALTHY, trainer)


def _batches_come(seen: Observation, job: Job, trainer: ProcessActivity) -> bool:
    """True if the loop got something while it was watched: whoever waits with a limit wakes up only now and then."""
    if any(is_ours(frame) for frame in trainer.last.frames[:3]):  # our own looks at its workers much more often
        return any(stand(seen, pid).moves for pid in job.workers)
    wakes = trainer.last.main.wakes - trainer.seen[0].main.wakes
    used_s = trainer.last.main.cpu_s - trainer.seen[0].main.cpu_s
    return wakes > 4 + trainer.looked_s or used_s > 0.05 + 0.05 * trainer.looked_s


def _own(seen: Observation, job: Job, trainer: ProcessActivity) -> _Part:
    """Judge a training process that stands at a line of its own."""
    suspect = _suspect(seen, trainer, name_of(job))
    verdict, sure = _verdict(seen, trainer, suspect.cause)
    if suspect.cause in _PEOPLE:
        return _Part(job, Verdict.HEALTHY, trainer, (suspect,))
    return _Part(job, verdict, trainer, (suspect,), sure)


def _without_batches(seen: Observation, job: Job, trainer: ProcessActivity, *, blind: bool) -> _Part:
    """Judge a training process that waits for its workers, and gets nothing."""
    workers = _living(seen, job)
    busy = {pid: worker for pid, worker in workers.items() if not _is_idle(worker, blind)}
    if not busy:
        if trainer.always(Doing.DATA):
            suspect = lost(seen, job, trainer, len(workers))
            return _Part(job, Verdict.STUCK, trainer, (suspect,), seen.snapshots[-1].at_s > seen.snapshots[0].at_s)
        return _own(seen, job, trainer)
    rows = _rows(seen, job, busy)
    verdict, sure = rows[0][0], rows[0][1]
    moving = [row for row in rows if row[0] is not Verdict.STUCK]
    if verdict is Verdict.STUCK and moving and rows[0][2].cause is Cause.LOCK:
        verdict, sure = Verdict.SLOW, False  # who moves may hold the lock
    return _Part(job, verdict, trainer, tuple(row[2] for row in rows), sure)


def _starved(seen: Observation, job: Job, trainer: ProcessActivity) -> _Part | None:
    """Judge a job in which somebody waits for memory: whatever the others do, they will soon, too."""
    workers = {pid: worker for pid, worker in _living(seen, job).items() if worker.finding.cause is Cause.OUT_OF_MEMORY}
    if not workers:
        return _own(seen, job, trainer) if trainer.finding.cause is Cause.OUT_OF_MEMORY else None
    rows = _rows(seen, job, workers)
    return _Part(job, rows[0][0], trainer, tuple(row[2] for row in rows), rows[0][1])


def _rows(seen: Observation, job: Job, workers: dict[int, ProcessActivity]) -> list[tuple[Verdict, bool, Suspect]]:
    """Return workers as suspects, each with its verdict and whether that is sure, the worst first."""
    rows = []
    for pid, worker in workers.items():
        suspect = _suspect(seen, worker, name_of(job, worker=job.workers.index(pid), pid=pid))
        rows.append((*_verdict(seen, worker, suspect.cause), suspect))
    return sorted(rows, key=lambda row: (_ORDER.index(row[0]), -row[2].still_s))


def _living(seen: Observation, job: Job) -> dict[int, ProcessActivity]:
    """Return the workers that have not ended: one that has no more samples ends, and nobody waits for it."""
    workers = {pid: stand(seen, pid) for pid in job.workers}
    return {pid: worker for pid, worker in workers.items() if worker.last.state not in ("Z", "X")}


def _is_idle(worker: ProcessActivity, blind: bool) -> bool:
    if worker.finding.cause in _HELD:
        return False
    if worker.always(Doing.IDLE):
        return True
    # Without stacks: an idle worker waits for its queue in the same call as its trainer does.
    return blind and not worker.moves and "poll" in (worker.evidence.syscall or worker.evidence.wchan)


def _verdict(seen: Observation, standing: ProcessActivity, cause: Cause) -> tuple[Verdict, bool]:
    """Return what a cause means for the job, and whether looking longer would not change it."""
    limit_s = standing.evidence.limit_s
    if cause is Cause.FORK and max(standing.looked_s, seen.still_s) < _TURN_S:
        return Verdict.SLOW, False  # threads of its own may be about to wake it
    if cause in _FOR_EVER and (standing.last.frames or cause is not Cause.FORK):
        return Verdict.STUCK, True
    if cause in _PEOPLE:
        return Verdict.SLOW, True
    if cause is Cause.DEAD_DISK:
        return (Verdict.STUCK, True) if max(standing.quiet_s, seen.still_s) >= OPEN_END_S else (Verdict.SLOW, False)
    if cause in _MOVING and standing.moves:
        return (Verdict.STUCK, True) if seen.still_s >= _LONG_S else (Verdict.SLOW, False)
    if limit_s is not None and math.isfinite(limit_s):
        long = limit_s + standing.still_s >= _LONG_S
        return (Verdict.STUCK if long else Verdict.SLOW), long
    if cause in _OPEN and not standing.moves:
        enough_s = OPEN_END_S if standing.last.frames or cause in _SHOWN else _BLIND_S
        return (Verdict.STUCK, True) if max(standing.still_s, seen.still_s) >= enough_s else (Verdict.SLOW, False)
    return Verdict.SLOW, False


def _suspect(seen: Observation, standing: ProcessActivity, name: str, cause: Cause | None = None) -> Suspect:
    finding = standing.finding
    if cause is not None:
        finding = Finding(cause=cause, evidence_lines=finding.evidence_lines)
    waited_for = last_threads(standing.last)
    more = more_lines(seen, standing.last, finding.cause)
    finding = replace(finding, evidence_lines=tuple(clean_lines([*finding.evidence_lines, *more])))
    has_stacks = bool(standing.last.frames) or finding.cause in _SHOWN
    confidence = Confidence.CERTAIN if finding.cause in _CERTAIN and has_stacks else Confidence.LIKELY
    if finding.cause is Cause.UNKNOWN or not has_stacks:
        confidence = Confidence.POSSIBLE
    return Suspect(
        pid=standing.last.pid,
        name=name,
        finding=finding,
        confidence=confidence,
        sample=one_line(standing.last.sample, 200),
        still_s=standing.still_s,
        frames=user_frames(waited_for[0].frames if waited_for else standing.evidence.frames),
        folder=standing.last.folder,
    )


def is_enough(seen: Observation) -> bool:
    """True if looking longer would not change the verdict."""
    return judge(seen).sure
