"""Every worker is idle, and the training loop waits for a batch: where has it gone? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.diagnosis import Cause, Finding, user_frames
from antifreeze.doctor.job._diagnosis import Confidence, Suspect
from antifreeze.doctor.job._job_messages import name_of
from antifreeze.doctor.job._observation import Observation
from antifreeze.doctor.job._process_activity import ProcessActivity
from antifreeze.doctor.job._resource_limits import descriptor_lines, more_lines
from antifreeze.doctor.job._roles import Job

_WORDS = {Cause.OUT_OF_MEMORY: "waits for a worker that the kernel has killed because memory ran out"}
_SMALL = 128 << 20
"""Containers have 64 MB unless somebody asks for more."""


def lost(seen: Observation, job: Job, trainer: ProcessActivity, num_workers: int) -> Suspect:
    """Return why a training loop waits for what no worker makes."""
    machine = seen.machine
    lines = [_workers(num_workers), *trainer.finding.evidence_lines]
    killed = bool(machine.group.oom_kills)
    if killed and (trainer.last.ignores_children or num_workers == 0):
        cause = Cause.OUT_OF_MEMORY
        confidence = Confidence.CERTAIN if machine.group.new_oom_kills else Confidence.LIKELY
        if trainer.last.ignores_children:
            lines.insert(1, "the training process ignores SIGCHLD, and is not told of the end of a worker")
    elif trainer.last.ignores_children:
        cause, confidence = Cause.UNNOTICED_DEATH, Confidence.CERTAIN
        lines.insert(1, "the training process ignores SIGCHLD")
    elif said := machine.last_error:
        full = any(word in said for word in ("No space left", "unable to allocate shared memory", "unable to mmap"))
        cause, confidence = Cause.SHARED_MEMORY if full else Cause.LOST_BATCH, Confidence.CERTAIN
        lines.insert(1, f"a thread that sends batches has printed: {said}")
    elif machine.shm_failed:
        cause, confidence = Cause.SHARED_MEMORY, Confidence.CERTAIN
        lines.insert(1, f"pieces of shared memory that lie empty in /dev/shm: {machine.shm_failed}")
    elif machine.shm_nbytes and (machine.shm_nbytes <= _SMALL or machine.shm_free_nbytes < machine.shm_nbytes // 20):
        cause, confidence = Cause.SHARED_MEMORY, Confidence.POSSIBLE
    elif num_workers == 0:
        cause, confidence = Cause.UNNOTICED_DEATH, Confidence.LIKELY
    else:
        cause, confidence = Cause.LOST_BATCH, Confidence.LIKELY
    if cause is Cause.SHARED_MEMORY:
        size = f"{machine.shm_nbytes / 1e6:,.0f} MB, of which {machine.shm_free_nbytes / 1e6:,.0f} MB are free"
        lines.append(f"size of /dev/shm: {size}")
    lines += [*more_lines(seen, trainer.last, cause), *_files_of_workers(seen, job)]
    return Suspect(
        pid=trainer.last.pid,
        name=name_of(job),
        finding=Finding(cause=cause, evidence_lines=tuple(lines), words=_WORDS.get(cause, "")),
        confidence=confidence,
        still_s=trainer.looked_s,
        frames=user_frames(trainer.last.frames),
        folder=trainer.last.folder,
    )


def _files_of_workers(seen: Observation, job: Job) -> Iterator[str]:
    """Yield which workers may hardly open more files: then a batch cannot be sent."""
    for process in seen.snapshots[-1].processes:
        if process.pid in job.workers:
            who = name_of(job, worker=job.workers.index(process.pid), pid=process.pid)
            yield from descriptor_lines(process, f"{who} has")


def _workers(num_workers: int) -> str:
    if num_workers == 0:
        return "there are no worker processes, and the training loop waits for them"
    if num_workers == 1:
        return "its worker was idle whenever it was looked at: it waits for work"
    return f"its {num_workers} workers were idle whenever they were looked at: they wait for work"
