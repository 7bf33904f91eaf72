"""Text about a job: names of processes, further evidence, the summary, and notes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from antifreeze.core import one_line
from antifreeze.diagnosis import Cause, is_user, user_frames
from antifreeze.doctor.job._diagnosis import Suspect, Verdict
from antifreeze.doctor.job._observation import GroupMemory, Observation, Process, Stack
from antifreeze.doctor.job._process_activity import ProcessActivity
from antifreeze.doctor.job._roles import Doing, Job, has_frame

_NEAR_SHARE = 0.9
"""A limit is nearly reached when this fraction of it is used."""
_CAUSED_BY_FILES = frozenset({Cause.DEAD_DISK, Cause.FILE, Cause.CHILD})
_CAUSED_BY_EXITS = frozenset(
    {Cause.OUT_OF_MEMORY, Cause.UNNOTICED_DEATH, Cause.LOST_BATCH, Cause.LOCK, Cause.CHILD, Cause.RANK, Cause.UNKNOWN}
)
"""What the end of another process can cause."""


def name_of(job: Job, worker: int | None = None, pid: int | None = None) -> str:
    """Return the name of a process for a person."""
    if worker is None and job.rank is None:
        return f"the training process ({job.trainer})"
    if worker is None:
        return f"rank {job.rank} (pid {job.trainer})"
    rank = f" of rank {job.rank}" if job.rank is not None else ""
    return f"worker {worker} (pid {pid}){rank}"


def summary(
    verdict: Verdict, suspects: Sequence[Suspect], jobs: Sequence[tuple[Job, ProcessActivity]], still_s: float
) -> str:
    """Return the diagnosis in one paragraph."""
    job, trainer = jobs[0]
    if not suspects and verdict is Verdict.HEALTHY:
        return "The job is making progress."
    if not suspects:
        share = share_of_waiting(trainer)
        return f"The job is making progress, but its loop waits for data in {share:.0%} of the snapshots."
    first = suspects[0]
    same = [suspect for suspect in suspects if suspect.cause is first.cause and suspect is not first]
    also = f" (and {len(same)} more like it)" if same else ""
    text = f"{_capital(first.name)}{also} {first.finding.title}"
    if first.sample:
        text += f", at sample {first.sample}"
    if first.frames:
        frame = first.frames[0]
        text += f", at {frame.file}:{frame.line} in {frame.function}"
    text += "."
    waits = "" if first.pid == job.trainer else f"{_capital(name_of(job))} {trainer.doings[-1].value}. "
    if verdict is Verdict.STUCK:
        stalled_s = max(still_s, first.still_s)
        text += f" {waits}No progress for {_at_least(stalled_s)}; this will not end by itself."
    elif verdict is Verdict.SLOW:
        text += f" {waits}No batch for {_at_least(still_s)}; this may end by itself."
    return text


def _at_least(seconds: float) -> str:
    return f"at least {seconds:.0f} s" if seconds < 120 else f"at least {seconds / 60:.0f} minutes"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def share_of_waiting(trainer: ProcessActivity) -> float:
    """Return the fraction of snapshots in which the loop waited for data."""
    return sum(doing is Doing.DATA for doing in trainer.doings) / len(trainer.doings)


def where_time_goes(jobs: Iterable[tuple[Job, ProcessActivity]], workers: Iterable[ProcessActivity]) -> Iterator[str]:
    """Yield where trainers and workers were seen most often."""
    for job, trainer in jobs:
        if trainer.last.frames:
            counts = Counter(doing.value for doing in trainer.doings)
            total = len(trainer.doings)
            parts = ", ".join(f"{what} ({count} of {total} snapshots)" for what, count in counts.most_common(2))
            yield f"{name_of(job)} {parts}{_lines([trainer])}"
    working = [worker for worker in workers if not worker.always(Doing.IDLE)]
    if working:
        yield f"workers: {len(working)} at work{_lines(working)}"


def with_places(suspects: Sequence[Suspect], jobs: Sequence[tuple[Job, ProcessActivity]]) -> tuple[Suspect, ...]:
    """Return the suspects, those that wait for other ranks with the location of every rank."""
    places = []
    for job, trainer in jobs:
        frames = user_frames(trainer.last.frames, 1)
        inner = f" ({trainer.last.frames[0].function})" if trainer.doings[-1] is Doing.COLLECTIVE else ""
        at = f" at {frames[0]}" if frames else ""
        places.append(one_line(f"{name_of(job)} {trainer.doings[-1].value}{inner}{at}"))
    return tuple(
        replace(s, finding=replace(s.finding, evidence_lines=(*places, *s.finding.evidence_lines)))
        if s.cause is Cause.RANK
        else s
        for s in suspects
    )


def _lines(activities: Iterable[ProcessActivity]) -> str:
    """Return the user's lines at which processes were seen most often."""
    counts: Counter[str] = Counter()
    for activity in activities:
        for look, doing in zip(activity.seen, activity.doings, strict=True):
            frames = user_frames(look.frames, 1)
            if frames and doing is not Doing.IDLE:
                counts[str(frames[0])] += 1
    total = sum(counts.values())
    parts = [f"{place} ({count / total:.0%})" for place, count in counts.most_common(2)]
    return f"; mostly at {', '.join(parts)}" if parts else ""


def missing_lines(seen: Observation) -> Iterator[str]:
    """Yield what was not visible, and how to make it visible."""
    errors = Counter(p.stacks_error for p in seen.snapshots[-1].processes if p.stacks_error)
    for error, count in errors.most_common(2):
        yield f"no Python lines of {count} process{'es' if count > 1 else ''}: {error}"


def more_lines(seen: Observation, process: Process, cause: Cause) -> tuple[str, ...]:
    """Return evidence about a process besides its location."""
    end = "the program has finished, and waits for thread"
    lines = [f"{end} {stack.name!r}: {user_frames(stack.frames, 1)[0]}" for stack in last_threads(process)]
    main = process.main
    if cause in _CAUSED_BY_FILES and main.path:
        lines += [f"the file that it waits for: {main.path}"] if main.path != main.target else []
        lines += [f"the file is on {main.mount}"] if main.mount else []
    if cause is Cause.CHILD and process.state == "D":
        lines += _child_lines(seen, process)
    return (*lines, *descriptor_lines(process, "it has"), *_memory_lines(seen.machine.group, cause))


def last_threads(process: Process) -> tuple[Stack, ...]:
    """Return the threads in the user's code that a finished program waits for."""
    at_end = has_frame(process.frames[:3], "/threading.py", "_shutdown")
    others = (stack for stack in process.stacks if stack.tid != process.pid)
    return tuple(stack for stack in others if at_end and any(is_user(frame) for frame in stack.frames))


def descriptor_lines(process: Process, who: str) -> Iterator[str]:
    """Yield how many files a process has open, if that is nearly its limit."""
    if process.max_files and process.files >= _NEAR_SHARE * process.max_files:
        yield f"{who} {process.files:,} files open, of at most {process.max_files:,} (`ulimit -n`)"


def _child_lines(seen: Observation, process: Process) -> Iterator[str]:
    """Yield the system calls of the processes that were started and do not run their program yet."""
    for child in seen.snapshots[-1].processes:
        if child.parent == process.pid and child.main.syscall:
            about = child.main.path or child.main.target
            yield f"the new process ({child.pid}) is in system call {child.main.syscall}{about and f' on {about}'}"


def _memory_lines(group: GroupMemory, cause: Cause) -> Iterator[str]:
    if group.limit_nbytes and group.used_nbytes >= _NEAR_SHARE * group.limit_nbytes:
        used = f"{group.used_nbytes / 1e6:,.0f} MB of {group.limit_nbytes / 1e6:,.0f} MB"
        yield f"memory of its control group: {used} used, not counting the page cache"
    if group.waits:
        yield "the control group is out of memory, and its processes wait for some instead of being killed"
    if group.new_oom_kills:
        yield f"{_killed(group.new_oom_kills)} while the job was watched"
    elif group.oom_kills and cause in _CAUSED_BY_EXITS:
        yield f"{_killed(group.oom_kills)} since the group was created"


def _killed(count: int) -> str:
    what = "a process" if count == 1 else f"{count} processes"
    return f"the kernel killed {what} of its control group because memory ran out"
