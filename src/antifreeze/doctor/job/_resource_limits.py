"""Further evidence for a cause: a file and its disk, a thread, limits that are nearly reached. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.diagnosis import Cause, is_user, user_frames
from antifreeze.doctor._cgroup import GroupMemory
from antifreeze.doctor.job._observation import Observation, Process, Stack
from antifreeze.doctor.job._roles import has_frame

_NEAR_SHARE = 0.9
"""A limit is nearly reached when this fraction of it is used."""
_CAUSED_BY_FILES = frozenset({Cause.DEAD_DISK, Cause.FILE, Cause.CHILD})
_CAUSED_BY_EXITS = frozenset(
    {Cause.OUT_OF_MEMORY, Cause.UNNOTICED_DEATH, Cause.LOST_BATCH, Cause.LOCK, Cause.CHILD, Cause.RANK, Cause.UNKNOWN}
)
"""What the end of another process can cause."""


def more_lines(seen: Observation, process: Process, cause: Cause) -> tuple[str, ...]:
    """Return evidence about a process besides its location."""
    lines = [*_thread_lines(process), *_file_lines(process, cause)]
    if cause is Cause.CHILD and process.state == "D":
        lines += _child_lines(seen, process)
    return (*lines, *descriptor_lines(process, "it has"), *_memory_lines(seen.machine.group, cause))


def last_threads(process: Process) -> tuple[Stack, ...]:
    """Return the threads in the user's code that a finished program waits for."""
    at_end = has_frame(process.frames[:3], "/threading.py", frozenset({"_shutdown"}))
    others = (stack for stack in process.stacks if stack.tid != process.pid)
    return tuple(stack for stack in others if at_end and any(is_user(frame) for frame in stack.frames))


def _thread_lines(process: Process) -> Iterator[str]:
    for stack in last_threads(process):
        yield f"the program has finished, and waits for thread {stack.name!r}: {user_frames(stack.frames, 1)[0]}"


def descriptor_lines(process: Process, who: str) -> Iterator[str]:
    """Yield how many files a process has open, if that is nearly its limit."""
    if process.max_files and process.files >= _NEAR_SHARE * process.max_files:
        yield f"{who} {process.files:,} files open, of at most {process.max_files:,} (`ulimit -n`)"


def _file_lines(process: Process, cause: Cause) -> Iterator[str]:
    main = process.main
    if cause not in _CAUSED_BY_FILES or not main.path:
        return
    if main.path != main.target:
        yield f"the file that it waits for: {main.path}"
    if main.mount:
        yield f"the file is on {main.mount}"


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
