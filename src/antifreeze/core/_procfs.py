"""Reading ``/proc``: the one place that knows where it keeps what, and in which form.

Guarantees:

- A process that is stuck cannot hold its reader. ``cmdline``, ``environ`` and ``maps`` are never read here: they wait
  for the memory lock of the process, and one that waits for a dead disk may hold it.
- A process that is gone, or belongs to another user, gives empty facts, never an error.
- Signal-safe, fork-safe: files are read by ``os.open`` and ``os.read``. No lock is taken, and nothing is imported.

Without ``/proc`` all facts are empty. macOS is such a system, and is not tested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from antifreeze.core._numbers import natural

PROC = Path("/proc")
_CHUNK = 1 << 16


class ProcStat(NamedTuple):
    """The fields of ``/proc/<pid>/stat`` that we use."""

    state: str
    """One letter: R, S, D, T, t, Z, X."""
    parent: int
    page_faults: int
    """Pages that were read from a disk: a mapped file is read without a call."""
    cpu_ticks: int
    """Of all its threads, and of the children that it waited for."""
    start_ticks: int
    """When it was started, since the machine was: tells it from a later process with the same pid."""


def read_proc_file(path: str | Path) -> str:
    """Return the text of a file, or nothing if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    parts = []
    try:
        while part := os.read(fd, _CHUNK):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "replace")


def pairs_of(text: str) -> dict[str, str]:
    """Return ``name: value`` or ``name value`` lines as a dict."""
    words = (line.split(None, 1) for line in text.splitlines())
    return {pair[0].rstrip(":"): pair[1].strip() for pair in words if len(pair) == 2}


def stat_of(pid: int, *, proc: Path = PROC) -> ProcStat | None:
    """Return the state and counters of a process; None if it is gone."""
    # The name in front may hold blanks and brackets.
    fields = read_proc_file(f"{proc}/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    numbers = [natural(field) or 0 for field in fields[:20]]
    return ProcStat(fields[0], numbers[1], numbers[9], sum(numbers[11:15]), numbers[19])


def children_of(pid: int, *, proc: Path = PROC) -> Iterator[int]:
    """Yield the processes that a process has started and that have not been waited for."""
    for tid in _numbers_in(f"{proc}/{pid}/task"):
        yield from children_of_thread(pid, tid, proc=proc)


def children_of_thread(pid: int, tid: int, *, proc: Path = PROC) -> list[int]:
    """Return those that one thread of it has started."""
    return [natural(word) or 0 for word in read_proc_file(f"{proc}/{pid}/task/{tid}/children").split()]


def own_children() -> list[int]:
    """Return the children of this process, which has one thread; none where the system does not tell."""
    me = os.getpid()
    if Path(f"/proc/{me}/task/{me}/children").exists():
        return children_of_thread(me, me)
    # Not every kernel keeps that list.
    return [pid for pid in _numbers_in("/proc") if (stat := stat_of(pid)) is not None and stat.parent == me]


def own_descriptors() -> dict[int, str]:
    """Return the open descriptors of this process, and what each refers to."""
    found = {}
    for fd in _numbers_in("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  it is called between two forks
        except OSError:  # the one that listed the folder
            continue
    return found


def own_threads() -> dict[int, str]:
    """Return the names of all threads of this process, as the kernel knows them."""
    found = {tid: read_proc_file(f"/proc/self/task/{tid}/comm") for tid in _numbers_in("/proc/self/task")}
    # A thread that has just ended has no file; one without a name has a file with an empty line.
    return {tid: line.strip() for tid, line in found.items() if line}


def pid_namespace() -> int:
    """Return the namespace that pids of this process belong to; 0 if it is not known."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _numbers_in(folder: str) -> list[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208  it is called between two forks
    except OSError:
        return []
    return sorted(number for name in names if (number := natural(name)) is not None)
