"""Every worker is idle, and the training loop waits for a batch: why the batch was lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.diagnosis import Cause, Finding, user_frames
from antifreeze.doctor.job._diagnosis import Confidence, Suspect
from antifreeze.doctor.job._job_messages import name_of
from antifreeze.doctor.job._observation import Machine, Observation, Process
from antifreeze.doctor.job._process_activity import ProcessActivity
from antifreeze.doctor.job._resource_limits import descriptor_lines, more_lines
from antifreeze.doctor.job._roles import Job

_KILLED_WORKER = "waits for a worker that the kernel killed because memory ran out"
_SMALL_SHM_NBYTES = 128 << 20
"""Containers have 64 MB by default."""


def lost_batch(seen: Observation, job: Job, trainer: ProcessActivity, num_workers: int) -> Suspect:
    """Return why a training loop waits for a batch that no worker is making."""
    machine = seen.machine
    cause, confidence = _cause(machine, trainer.last, num_workers)
    lines = [_workers(num_workers), *_signs(cause, machine, trainer.last), *trainer.finding.evidence_lines]
    if cause is Cause.SHARED_MEMORY:
        free = f"{machine.shm_free_nbytes / 1e6:,.0f} MB"
        lines.append(f"size of /dev/shm: {machine.shm_nbytes / 1e6:,.0f} MB, {free} of them free")
    lines += [*more_lines(seen, trainer.last, cause), *_files_of_workers(seen, job)]
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


def _files_of_workers(seen: Observation, job: Job) -> Iterator[str]:
    """Yield which workers have reached their limit of open files: then a batch cannot be sent."""
    for process in seen.snapshots[-1].processes:
        if process.pid in job.workers:
            who = name_of(job, worker=job.workers.index(process.pid), pid=process.pid)
            yield from descriptor_lines(process, f"{who} has")


def _workers(num_workers: int) -> str:
    if num_workers == 0:
        return "there are no worker processes, and the training loop waits for them"
    if num_workers == 1:
        return "its worker was idle in every observation: it waits for work"
    return f"its {num_workers} workers were idle in every observation: they wait for work"
