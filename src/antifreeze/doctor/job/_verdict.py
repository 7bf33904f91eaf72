"""From an observation to a verdict: is the job healthy, slow or stuck, which process holds it up, and why. Pure.

The questions, in this order:

1. What does each training process do: wait for its workers, for the other ranks, or run its own code?
2. If it waits for its workers and no batch comes: which of them are stalled, and why? If all of them are idle, the
   batch was lost. If one of them makes progress, the job is slow.
3. If it waits for the other ranks: which rank is elsewhere? That one holds up the rest.
4. Otherwise the trainer itself is stalled at a line of its program, or nothing is.

A job is stuck only if the wait cannot end by itself, or has no limit and made no progress the whole time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from antifreeze.core import clean_lines, one_line
from antifreeze.diagnosis import Cause, Finding, is_ours, user_frames
from antifreeze.doctor.job._diagnosis import Confidence, Diagnosis, Suspect, Verdict
from antifreeze.doctor.job._job_messages import (
    descriptor_lines,
    last_threads,
    missing_lines,
    more_lines,
    name_of,
    share_of_waiting,
    summary,
    where_time_goes,
    with_places,
)
from antifreeze.doctor.job._observation import Machine, Observation, Process
from antifreeze.doctor.job._process_activity import STUCK_GRACE_S, ProcessActivity, activity_of
from antifreeze.doctor.job._roles import Doing, Job, find_jobs

_BLIND_GRACE_S = 60.0
"""The same where no Python lines are visible, so that it may be a sleep."""
_PROGRESS_GRACE_S = 300.0
"""A process that makes progress, or sleeps, counts as stuck only after this time."""
_WAKEUP_GRACE_S = 2.0
"""A wait for threads that are at work ends within this time; a wait for lost threads does not."""
_PERMANENT = frozenset({Cause.FORK, Cause.STOPPED, Cause.FULL_PIPE, Cause.RANK})
"""What does not end by itself."""
_BY_PERSON = frozenset({Cause.TRACED, Cause.INPUT})
"""What a person ends."""
_OF_IDLE_PROCESSES = frozenset({Cause.STOPPED, Cause.TRACED, Cause.DEAD_DISK, Cause.OUT_OF_MEMORY})
"""What can happen to an idle process."""
_SURE_WITHOUT_LINES = frozenset({Cause.STOPPED, Cause.TRACED, Cause.OUT_OF_MEMORY})
"""What is certain without Python lines."""
_CERTAIN = _SURE_WITHOUT_LINES | {Cause.FULL_PIPE, Cause.FORK, Cause.DEAD_DISK}
_WITHOUT_LIMIT = frozenset(
    {Cause.NETWORK, Cause.CHILD, Cause.FILE, Cause.LOCK, Cause.UNKNOWN, Cause.SLEEPING, Cause.STARTUP, Cause.FORK}
) | {Cause.OUT_OF_MEMORY}
_WITH_PROGRESS = frozenset({Cause.BUSY, Cause.RETRYING, Cause.STARTUP})
_ORDER = (Verdict.STUCK, Verdict.SLOW, Verdict.HEALTHY)
_MAX_SUMMARY_CHARS = 2_000
_KILLED_WORKER = "waits for a worker that the kernel killed because memory ran out"
_SMALL_SHM_NBYTES = 128 << 20
"""Containers have 64 MB by default."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The verdict on one training process."""

    job: Job
    verdict: Verdict
    trainer: ProcessActivity
    suspects: tuple[Suspect, ...] = ()
    is_sure: bool = True


def judge(seen: Observation) -> Diagnosis:
    """Return the diagnosis."""
    last = seen.snapshots[-1]
    root = last.find(seen.root) or last.processes[0]
    jobs = find_jobs(last) or (Job(root.pid, (), root.rank),)
    parts = [_judge_part(seen, job, several=len(jobs) > 1) for job in jobs]
    # The rank that is not in the collective where the others wait holds them up.
    elsewhere = [part for part in parts if not part.trainer.always(Doing.COLLECTIVE)]
    first = sorted(elsewhere or parts, key=lambda part: _ORDER.index(part.verdict))
    ordered = [*first, *(part for part in parts if part not in first)]
    verdict = min((part.verdict for part in parts), key=_ORDER.index)
    if verdict is Verdict.STUCK and first[0].verdict is not Verdict.STUCK:
        verdict = Verdict.SLOW  # the others wait for one that makes progress
    suspects = tuple(suspect for part in ordered for suspect in part.suspects)
    if len(parts) > 1:
        suspects = with_places(suspects, [(part.job, part.trainer) for part in parts])
    activities = [(part.job, part.trainer) for part in ordered]
    workers = [worker for part in ordered for worker in _running(seen, part.job).values()]
    looked_s = last.at_s - seen.snapshots[0].at_s
    return Diagnosis(
        verdict=verdict,
        summary=one_line(summary(verdict, suspects, activities, looked_s + seen.still_s), _MAX_SUMMARY_CHARS),
        suspects=suspects,
        notes=tuple(clean_lines([*where_time_goes(activities, workers), *missing_lines(seen)], _MAX_SUMMARY_CHARS)),
        sure=all(part.is_sure for part in parts),
        looked_s=looked_s,
    )


def _judge_part(seen: Observation, job: Job, *, several: bool) -> _Part:
    trainer = activity_of(seen, job.trainer, job.workers)
    if trainer.finding.cause in (Cause.STOPPED, Cause.TRACED):
        return _judge_trainer(seen, job, trainer)
    if seen.machine.group.waits:  # a process that waits for memory: the others soon will, too
        workers = _running(seen, job)
        starved = {pid: worker for pid, worker in workers.items() if worker.finding.cause is Cause.OUT_OF_MEMORY}
        if starved:
            return _judge_workers(seen, job, trainer, starved)
        if trainer.finding.cause is Cause.OUT_OF_MEMORY:
            return _judge_trainer(seen, job, trainer)
    waits = trainer.always(Doing.DATA, Doing.STARTS, Doing.ENDS)
    blind = trainer.always(Doing.UNKNOWN) and not trainer.moves and bool(job.workers)
    if (waits or blind) and not _batches_come(seen, job, trainer):
        return _judge_without_batches(seen, job, trainer, blind=blind)
    if trainer.always(Doing.COLLECTIVE) and not trainer.moves and several:
        suspect = _suspect(seen, trainer, name_of(job), cause=Cause.RANK)
        return _Part(
            job, Verdict.STUCK if trainer.still_s >= STUCK_GRACE_S else Verdict.SLOW, trainer, (suspect,), False
        )
    if not (trainer.moves or waits or trainer.always(Doing.CHILDREN)):
        return _judge_trainer(seen, job, trainer)
    slow = share_of_waiting(trainer) >= 0.5 and bool(job.workers)
    return _Part(job, Verdict.SLOW if slow else Verdict.HEALTHY, trainer)


def _batches_come(seen: Observation, job: Job, trainer: ProcessActivity) -> bool:
    """True if the loop got a batch meanwhile: a wait with a timeout alone wakes up only now and then."""
    if any(is_ours(frame) for frame in trainer.last.frames[:3]):  # our own loader checks its workers much more often
        return any(activity_of(seen, pid).moves for pid in job.workers)
    wakes = trainer.last.main.wakes - trainer.seen[0].main.wakes
    used_s = trainer.last.main.cpu_s - trainer.seen[0].main.cpu_s
    return wakes > 4 + trainer.looked_s or used_s > 0.05 + 0.05 * trainer.looked_s


def _judge_trainer(seen: Observation, job: Job, trainer: ProcessActivity) -> _Part:
    """Judge a training process that is at a line of the program itself."""
    suspect = _suspect(seen, trainer, name_of(job))
    verdict, sure = _verdict(seen, trainer, suspect.cause)
    if suspect.cause in _BY_PERSON:
        return _Part(job, Verdict.HEALTHY, trainer, (suspect,))
    return _Part(job, verdict, trainer, (suspect,), sure)


def _judge_without_batches(seen: Observation, job: Job, trainer: ProcessActivity, *, blind: bool) -> _Part:
    """Judge a training process that waits for its workers and gets no batch."""
    workers = _running(seen, job)
    busy = {pid: worker for pid, worker in workers.items() if not _is_idle(worker, blind)}
    if not busy:
        if trainer.always(Doing.DATA):
            suspect = _lost_batch(seen, job, trainer, len(workers))
            return _Part(job, Verdict.STUCK, trainer, (suspect,), seen.snapshots[-1].at_s > seen.snapshots[0].at_s)
        return _judge_trainer(seen, job, trainer)
    return _judge_workers(seen, job, trainer, busy)


def _judge_workers(seen: Observation, job: Job, trainer: ProcessActivity, workers: dict[int, ProcessActivity]) -> _Part:
    """Judge a training process by the workers that hold it up, the worst first."""
    rows = []
    for pid, worker in workers.items():
        suspect = _suspect(seen, worker, name_of(job, worker=job.workers.index(pid), pid=pid))
        rows.append((*_verdict(seen, worker, suspect.cause), suspect))
    rows.sort(key=lambda row: (_ORDER.index(row[0]), -row[2].still_s))
    verdict, sure, first = rows[0]
    if verdict is Verdict.STUCK and first.cause is Cause.LOCK and any(row[0] is not Verdict.STUCK for row in rows):
        verdict, sure = Verdict.SLOW, False  # the worker that makes progress may hold the lock
    return _Part(job, verdict, trainer, tuple(row[2] for row in rows), sure)


def _running(seen: Observation, job: Job) -> dict[int, ProcessActivity]:
    """Return the workers that have not exited: one without samples exits, and the loader does not wait for it."""
    workers = {pid: activity_of(seen, pid) for pid in job.workers}
    return {pid: worker for pid, worker in workers.items() if worker.last.state not in ("Z", "X")}


def _is_idle(worker: ProcessActivity, blind: bool) -> bool:
    if worker.finding.cause in _OF_IDLE_PROCESSES:
        return False
    if worker.always(Doing.IDLE):
        return True
    # Without stacks: an idle worker waits for its queue in the same call as its trainer does.
    return blind and not worker.moves and "poll" in (worker.evidence.syscall or worker.evidence.wchan)


def _verdict(seen: Observation, activity: ProcessActivity, cause: Cause) -> tuple[Verdict, bool]:
    """Return what a cause means for the job, and True if observing longer would not change it."""
    limit_s = activity.evidence.limit_s
    if cause is Cause.FORK and max(activity.looked_s, seen.still_s) < _WAKEUP_GRACE_S:
        return Verdict.SLOW, False  # its threads may be about to wake it
    if cause in _PERMANENT and (activity.last.frames or cause is not Cause.FORK):
        return Verdict.STUCK, True
    if cause in _BY_PERSON:
        return Verdict.SLOW, True
    if cause is Cause.DEAD_DISK:
        return (Verdict.STUCK, True) if max(activity.quiet_s, seen.still_s) >= STUCK_GRACE_S else (Verdict.SLOW, False)
    if cause in _WITH_PROGRESS and activity.moves:
        return (Verdict.STUCK, True) if seen.still_s >= _PROGRESS_GRACE_S else (Verdict.SLOW, False)
    if limit_s is not None and math.isfinite(limit_s):
        is_long = limit_s + activity.still_s >= _PROGRESS_GRACE_S
        return (Verdict.STUCK if is_long else Verdict.SLOW), is_long
    if cause in _WITHOUT_LIMIT and not activity.moves:
        enough_s = STUCK_GRACE_S if activity.last.frames or cause in _SURE_WITHOUT_LINES else _BLIND_GRACE_S
        return (Verdict.STUCK, True) if max(activity.still_s, seen.still_s) >= enough_s else (Verdict.SLOW, False)
    return Verdict.SLOW, False


def _suspect(seen: Observation, activity: ProcessActivity, name: str, cause: Cause | None = None) -> Suspect:
    finding = activity.finding
    if cause is not None:
        finding = Finding(cause=cause, evidence_lines=finding.evidence_lines)
    waited_for = last_threads(activity.last)
    more = more_lines(seen, activity.last, finding.cause)
    finding = replace(finding, evidence_lines=tuple(clean_lines([*finding.evidence_lines, *more])))
    has_stacks = bool(activity.last.frames) or finding.cause in _SURE_WITHOUT_LINES
    confidence = Confidence.CERTAIN if finding.cause in _CERTAIN and has_stacks else Confidence.LIKELY
    if finding.cause is Cause.UNKNOWN or not has_stacks:
        confidence = Confidence.POSSIBLE
    return Suspect(
        pid=activity.last.pid,
        name=name,
        finding=finding,
        confidence=confidence,
        sample=one_line(activity.last.sample, 200),
        still_s=activity.still_s,
        frames=user_frames(waited_for[0].frames if waited_for else activity.evidence.frames),
        folder=activity.last.folder,
    )


def _lost_batch(seen: Observation, job: Job, trainer: ProcessActivity, num_workers: int) -> Suspect:
    """Return why a training loop waits for a batch that no worker is making."""
    machine = seen.machine
    cause, confidence = _cause(machine, trainer.last, num_workers)
    lines = [_workers(num_workers), *_signs(cause, machine, trainer.last), *trainer.finding.evidence_lines]
    if cause is Cause.SHARED_MEMORY:
        free = f"{machine.shm_free_nbytes / 1e6:,.0f} MB"
        lines.append(f"size of /dev/shm: {machine.shm_nbytes / 1e6:,.0f} MB, {free} of them free")
    lines += more_lines(seen, trainer.last, cause)
    for process in seen.snapshots[-1].processes:  # a worker at its limit of open files cannot send a batch
        if process.pid in job.workers:
            who = name_of(job, worker=job.workers.index(process.pid), pid=process.pid)
            lines += descriptor_lines(process, f"{who} has")
    words = _KILLED_WORKER if cause is Cause.OUT_OF_MEMORY else ""
    return Suspect(
        pid=trainer.last.pid,
        name=name_of(job),
        finding=Finding(cause=cause, evidence_lines=tuple(lines), words=words),
        confidence=confidence,
        still_s=trainer.looked_s,
        frames=user_frames(trainer.last.frames),
        folder=trainer.last.folder,
    )


def _cause(machine: Machine, trainer: Process, num_workers: int) -> tuple[Cause, Confidence]:
    """Return the cause that the strongest sign shows, and how sure it is."""
    if machine.group.oom_kills and (trainer.ignores_sigchld or num_workers == 0):
        return Cause.OUT_OF_MEMORY, Confidence.CERTAIN if machine.group.new_oom_kills else Confidence.LIKELY
    if trainer.ignores_sigchld:
        return Cause.UNNOTICED_DEATH, Confidence.CERTAIN
    if machine.last_error:
        return Cause.SHARED_MEMORY if machine.is_shm_exhausted else Cause.LOST_BATCH, Confidence.CERTAIN
    if machine.shm_failed:
        return Cause.SHARED_MEMORY, Confidence.CERTAIN
    if 0 < machine.shm_nbytes <= _SMALL_SHM_NBYTES or machine.shm_free_nbytes < machine.shm_nbytes // 20:
        return Cause.SHARED_MEMORY, Confidence.POSSIBLE
    return Cause.UNNOTICED_DEATH if num_workers == 0 else Cause.LOST_BATCH, Confidence.LIKELY


def _signs(cause: Cause, machine: Machine, trainer: Process) -> Iterator[str]:
    """Yield what the cause was decided by."""
    if trainer.ignores_sigchld:
        yield "the training process ignores SIGCHLD, and is not notified when a worker exits"
    elif cause is Cause.OUT_OF_MEMORY:
        return
    elif machine.last_error:
        yield f"a thread that sends batches printed: {machine.last_error}"
    elif machine.shm_failed:
        yield f"empty files of shared memory in /dev/shm: {machine.shm_failed}"


def _workers(num_workers: int) -> str:
    if num_workers == 0:
        return "there are no worker processes, and the training loop waits for them"
    if num_workers == 1:
        return "its worker was idle in every observation: it waits for work"
    return f"its {num_workers} workers were idle in every observation: they wait for work"


def is_enough(seen: Observation) -> bool:
    """True if observing longer would not change the verdict."""
    return judge(seen).sure
