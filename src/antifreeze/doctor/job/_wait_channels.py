"""What a waiting thread waits for: its timeout, its lock, its file, from the arguments of its system call.

The memory of the process is read beside it, without stopping it: the kernel lets a process read the memory of another
where it would let it attach a debugger. Nothing is written, and no call touches the file that is waited for.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from antifreeze.core import PROC, natural, one_line, read_proc_file
from antifreeze.diagnosis import ProcSnapshot, TargetKind

_TIMER_ABSTIME = 1
_FUTEX_PRIVATE_FLAG = 128
_FUTEX_WAIT_BITSET, _FUTEX_LOCK_PI = 9, 6
_FUTEX_CLOCK_REALTIME = 256
_AT_FDCWD = 0xFFFFFF9C  # as 32 bits
_PAGE_NBYTES = 4096
_STACK_NBYTES = 16 * 1024
_EXECUTABLE_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r.x\S* \S+ \S+ \S+ +(/.*)")
_RUNTIME = re.compile(r"(ld-linux|libc[.-]|libpthread|libdl|libm[.-]|libstdc\+\+|libgcc_s|libpython|python)")
"""Libraries that every process calls, which say nothing about a wait."""
_MAX_LIBRARIES = 4
_PATH_FIRST = re.compile(r"open|l?stat|access|statfs|readlink|rename|unlink|mkdir|rmdir|truncate")
_PATH_SECOND = re.compile(r"openat2?|newfstatat|statx|faccessat2?|readlinkat|renameat2?|unlinkat|mkdirat")
"""System calls whose first or second argument is a path."""
_UNLIMITED = ("read", "recvfrom", "recvmsg", "accept", "accept4", "wait4", "pause")


class Wait(NamedTuple):
    """What is known about a wait beyond its system call: fields of a ``Thread``."""

    limit_s: float | None = None
    shared: bool = False
    owner: int = 0
    libraries: tuple[str, ...] = ()


class Mapped(NamedTuple):
    """Code of a library in the memory of a process."""

    start: int
    end: int
    name: str


class FileTarget(NamedTuple):
    """A file, the mount it is on, and the sectors its disk has read and written: fields of a ``Thread``."""

    path: str = ""
    mount: str = ""
    sectors: int = 0


class Mount(NamedTuple):
    """A file system as text, and the number of its device."""

    description: str = ""
    device: str = ""


def wait_of(pid: int, seen: ProcSnapshot, libraries: Sequence[Mapped], *, proc: Path = PROC) -> Wait:
    """Return what the system call of a thread says about its wait."""
    arguments = seen.arguments
    if len(arguments) < 7:  # six, then the stack pointer
        return Wait()
    with _memory_of(pid, proc) as memory:
        limit_s = _limit_s(memory, seen.syscall, arguments)
        if seen.syscall != "futex":
            return Wait(limit_s=limit_s)
        return Wait(
            limit_s=limit_s,
            shared=not arguments[1] & _FUTEX_PRIVATE_FLAG,
            owner=_owner(memory, arguments[0]),
            libraries=_called(_read(memory, arguments[6], _STACK_NBYTES), libraries),
        )


def libraries_of(pid: int, *, proc: Path = PROC) -> tuple[Mapped, ...]:
    """Return the code of libraries that a process has mapped, in the order of addresses."""
    mappings = read_proc_file(proc / str(pid) / "maps")
    found = (_EXECUTABLE_MAPPING.match(line) for line in mappings.splitlines())
    rows = [Mapped(int(match[1], 16), int(match[2], 16), match[3].rpartition("/")[2]) for match in found if match]
    return tuple(row for row in rows if not _RUNTIME.match(row.name))


def place_of(pid: int, seen: ProcSnapshot, *, may_read: bool, proc: Path = PROC) -> FileTarget:
    """Return the file that a system call is about. ``may_read``: the memory of the process may be read for it."""
    path = seen.syscall_target.text if seen.syscall_target.kind is TargetKind.FILE else ""
    if not path and may_read:
        path = _path_argument(pid, seen, proc)
    if not path:
        return FileTarget()
    mount = mount_of(path, read_proc_file(proc / str(pid) / "mountinfo"))
    return FileTarget(path, mount.description, sectors_of(mount.device, proc.parent / "sys"))


def mount_of(path: str, table: str) -> Mount:
    """Return the mount of a path, from a process's table: the longest one above it, the last of equal ones."""
    best, found = "", Mount()
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = _unescaped(fields[4])
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, found = point, Mount(f"{point} ({kind[0]}, {one_line(_unescaped(kind[1]), 200)})", fields[2])
    return found


def sectors_of(device: str, system: Path) -> int:
    """Return how many sectors a device has read and written so far: 0 if it is not a local disk."""
    counts = [natural(word) or 0 for word in read_proc_file(system / "dev" / "block" / device / "stat").split()]
    return counts[2] + counts[6] if len(counts) > 6 else 0


def _unescaped(text: str) -> str:
    """Return a path of the table as it is: blanks are written as ``\\040``."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _path_argument(pid: int, seen: ProcSnapshot, proc: Path) -> str:
    """Return the path that a system call was given, from the root."""
    at = 0 if _PATH_FIRST.fullmatch(seen.syscall) else 1 if _PATH_SECOND.fullmatch(seen.syscall) else -1
    if at < 0 or len(seen.arguments) <= at:
        return ""
    with _memory_of(pid, proc) as memory:
        raw = _read(memory, seen.arguments[at], _PAGE_NBYTES)
    path = raw.partition(b"\0")[0].decode("utf-8", "replace") if b"\0" in raw else ""
    if path.startswith("/") or not path:
        return path
    fd = seen.arguments[0] & 0xFFFFFFFF
    base = link_of(proc / str(pid) / ("cwd" if at == 0 or fd == _AT_FDCWD else f"fd/{fd}"))
    return f"{base}/{path}" if base else ""


def link_of(path: Path) -> str:
    """Return where a symbolic link leads, or nothing."""
    try:
        return os.fsencode(path.readlink()).decode("utf-8", "replace")
    except OSError:
        return ""


@contextlib.contextmanager
def _memory_of(pid: int, proc: Path) -> Iterator[int]:
    """Open the memory of another process; the descriptor is -1 where that is not allowed."""
    try:
        fd = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield -1
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _read(memory: int, address: int, nbytes: int) -> bytes:
    """Return what is at an address: all of it, or up to the end of its page; nothing if it cannot be read."""
    for size in (nbytes, _PAGE_NBYTES - address % _PAGE_NBYTES):  # the mapping may end within it
        with contextlib.suppress(OSError, OverflowError):
            return os.pread(memory, min(size, nbytes), address)
    return b""


def _limit_s(memory: int, call: str, arguments: tuple[int, ...]) -> float | None:
    if call == "clock_nanosleep":
        return _until(memory, arguments[2], arguments[0] if arguments[1] & _TIMER_ABSTIME else None)
    if call == "nanosleep":
        return _until(memory, arguments[0], None)
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        milliseconds = (arguments[2] if call == "poll" else arguments[3]) & 0xFFFFFFFF
        return milliseconds / 1000 if milliseconds < 1 << 31 else float("inf")  # it is negative
    if call in ("select", "pselect6", "ppoll"):
        where = {"select": 4, "pselect6": 4, "ppoll": 2}[call]
        unit_s = 1e-6 if call == "select" else 1e-9
        return _until(memory, arguments[where], None, unit_s) if arguments[where] else float("inf")
    if call == "futex":
        kind = arguments[1] & 127
        if not arguments[3]:
            return float("inf")
        is_realtime = arguments[1] & _FUTEX_CLOCK_REALTIME or kind == _FUTEX_LOCK_PI
        clock = time.CLOCK_REALTIME if is_realtime else time.CLOCK_MONOTONIC
        return _until(memory, arguments[3], clock if kind in (_FUTEX_WAIT_BITSET, _FUTEX_LOCK_PI) else None)
    return float("inf") if call in _UNLIMITED else None


def _until(memory: int, address: int, clock: int | None, unit_s: float = 1e-9) -> float | None:
    """Return the seconds of a time in memory: from now, or until then if it is a time of a clock."""
    raw = _read(memory, address, 16)
    if len(raw) < 16:
        return None
    seconds, fraction = struct.unpack("<qq", raw)
    length_s = float(seconds) + float(fraction) * unit_s
    try:
        return length_s if clock is None else max(0.0, length_s - time.clock_gettime(clock))
    except (OSError, OverflowError):  # a clock of that process alone
        return None


def _owner(memory: int, address: int) -> int:
    """Return the thread that holds a lock of the C library: its number follows the word that is waited for."""
    raw = _read(memory, address, 12)
    if len(raw) < 12:
        return 0
    word, _, owner = struct.unpack("<III", raw)
    return owner if word == 2 and 1 < owner < 1 << 22 else 0


def _called(stack: bytes, libraries: Sequence[Mapped]) -> tuple[str, ...]:
    """Return the libraries whose code is among the words of a stack: mostly return addresses, innermost first."""
    if not libraries:
        return ()
    starts = [row.start for row in libraries]
    names: dict[str, None] = {}
    for (word,) in struct.iter_unpack("<Q", stack[: len(stack) // 8 * 8]):
        i = bisect_right(starts, word) - 1
        if i >= 0 and word < libraries[i].end:
            names[libraries[i].name] = None
    return tuple(names)[:_MAX_LIBRARIES]
