"""What else speaks for a cause: a file and its disk, a thread, limits that are near. Silent where none is. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.diagnosis import Cause, is_user, user_frames
from antifreeze.doctor._cgroup import GroupMemory
from antifreeze.doctor.job._observation import Observation, Process, Stack
from antifreeze.doctor.job._roles import function_at

NEAR = 0.9
"""A limit is near when this much of it is used."""
_OF_FILES = frozenset({Cause.DEAD_DISK, Cause.FILE, Cause.CHILD})
_OF_DEATHS = frozenset(
    {Cause.OUT_OF_MEMORY, Cause.UNNOTICED_DEATH, Cause.LOST_BATCH, Cause.LOCK, Cause.CHILD, Cause.RANK, Cause.UNKNOWN}
)
"""What the death of another process can bring about."""


def more_lines(seen: Observation, process: Process, cause: Cause) -> tuple[str, ...]:
    """Return what is worth knowing of a process beside where it stands."""
    lines = [*_thread_lines(process), *_file_lines(process, cause)]
    if cause is Cause.CHILD and process.state == "D":
        lines += _child_lines(seen, process)
    return (*lines, *descriptor_lines(process, "it has"), *_memory_lines(seen.machine.group, cause))


def last_threads(process: Process) -> tuple[Stack, ...]:
    """Return the threads at lines of the user that a program waits for before it ends, if it is at its end."""
    at_end = function_at(process.frames[:3], "/threading.py", frozenset({"_shutdown"}))
    others = (stack for stack in process.stacks if stack.tid != process.pid)
    return tuple(stack for stack in others if at_end and any(is_user(frame) for frame in stack.frames))


def _thread_lines(process: Process) -> Iterator[str]:
    for stack in last_threads(process):
        yield f"the program is over, and waits for thread {stack.name!r}: {user_frames(stack.frames, 1)[0]}"


def descriptor_lines(process: Process, who: str) -> Iterator[str]:
    """Yield how many files a process has open, if it may hardly open more."""
    if process.most_files and process.files >= NEAR * process.most_files:
        yield f"{who} {process.files:,} files open, and may have {process.most_files:,} (`ulimit -n`)"


def _file_lines(process: Process, cause: Cause) -> Iterator[str]:
    main = process.main
    if cause not in _OF_FILES or not main.path:
        return
    if main.path != main.target:
        yield f"the file that it waits for: {main.path}"
    if main.mount:
        yield f"the file lies on {main.mount}"


def _child_lines(seen: Observation, process: Process) -> Iterator[str]:
    """Yield where the processes stand that were started and have not begun their program."""
    for child in seen.snapshots[-1].processes:
        if child.parent == process.pid and child.main.syscall:
            about = child.main.path or child.main.target
            yield f"the new process ({child.pid}) is in system call {child.main.syscall}{about and f' on {about}'}"


def _memory_lines(group: GroupMemory, cause: Cause) -> Iterator[str]:
    if group.limit_nbytes and group.used_nbytes >= NEAR * group.limit_nbytes:
        used = f"{group.used_nbytes / 1e6:,.0f} MB of {group.limit_nbytes / 1e6:,.0f} MB"
        yield f"memory of its control group: {used} are used, without copies of files"
    if group.waits:
        yield "the control group has no memory left, and its processes wait for some instead of being killed"
    if group.new_oom_kills:
        yield f"{_killed(group.new_oom_kills)} while the job was watched"
    elif group.oom_kills and cause in _OF_DEATHS:
        yield f"{_killed(group.oom_kills)} since the group was made"


def _killed(count: int) -> str:
    what = "a process" if count == 1 else f"{count} processes"
    return f"the kernel has killed {what} of its control group for want of memory"
