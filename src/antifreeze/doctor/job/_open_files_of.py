"""The file that a waiting thread is about, and where it lies. No call here touches the file itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from antifreeze.core import one_line
from antifreeze.diagnosis import ProcSnapshot, TargetKind

_PROC = Path("/proc")
_HERE = 0xFFFFFF9C  # AT_FDCWD, as 32 bits
_PAGE_NBYTES = 4096
_FIRST = re.compile(r"open|l?stat|access|statfs|readlink|rename|unlink|mkdir|rmdir|truncate")
_SECOND = re.compile(r"openat2?|newfstatat|statx|faccessat2?|readlinkat|renameat2?|unlinkat|mkdirat")
"""Calls whose first or second argument is a path."""


class FileTarget(NamedTuple):
    """A file, its file system in words, and how much the disk below has read and written; 0 where nobody tells."""

    path: str = ""
    mount: str = ""
    sectors: int = 0


class Mount(NamedTuple):
    """A file system in words, and the number of its device."""

    words: str = ""
    device: str = ""


def place_of(pid: int, seen: ProcSnapshot, *, may_read: bool, proc: Path = _PROC) -> FileTarget:
    """Return the file that a call is about. ``may_read``: whether the memory of the process may be read for it."""
    path = seen.syscall_target.text if seen.syscall_target.kind is TargetKind.FILE else ""
    if not path and may_read:
        path = _named(pid, seen, proc)
    if not path:
        return FileTarget()
    try:
        table = (proc / str(pid) / "mountinfo").read_text(errors="replace")
    except OSError:
        table = ""
    mount = mount_of(path, table)
    return FileTarget(path, mount.words, sectors_of(mount.device, proc.parent / "sys"))


def mount_of(path: str, table: str) -> Mount:
    """Return where a path lies, by the table of a process: the longest mount above it, the last of equal ones."""
    best, found = "", Mount()
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 2:
            continue
        point = _plain(fields[4])
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, found = point, Mount(f"{point} ({kind[0]}, {one_line(_plain(kind[1]), 200)})", fields[2])
    return found


def sectors_of(device: str, system: Path) -> int:
    """Return how many sectors a device has read and written so far: 0 if it is no disk of this machine."""
    try:
        counts = (system / "dev" / "block" / device / "stat").read_text().split()
        return int(counts[2]) + int(counts[6])
    except (OSError, ValueError, IndexError):
        return 0


def _plain(text: str) -> str:
    """Return a path as it is: blanks stand as ``\\040`` in the table."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _named(pid: int, seen: ProcSnapshot, proc: Path) -> str:
    """Return the path that a call was given, from the root."""
    at = 0 if _FIRST.fullmatch(seen.syscall) else 1 if _SECOND.fullmatch(seen.syscall) else -1
    if at < 0 or len(seen.arguments) <= at:
        return ""
    try:
        path = _text_at(proc / str(pid) / "mem", seen.arguments[at])
        if path.startswith("/") or not path:
            return path
        fd = seen.arguments[0] & 0xFFFFFFFF
        base = (proc / str(pid) / ("cwd" if at == 0 or fd == _HERE else f"fd/{fd}")).readlink()
    except (OSError, OverflowError):
        return ""
    return f"{os.fsencode(base).decode('utf-8', 'replace')}/{path}"


def _text_at(memory: Path, address: int) -> str:
    """Return the text that stands in a memory."""
    fd = os.open(memory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        raw = os.pread(fd, _PAGE_NBYTES - address % _PAGE_NBYTES, address)  # the memory may end with the page
    finally:
        os.close(fd)
    return raw.partition(b"\0")[0].decode("utf-8", "replace") if b"\0" in raw else ""
