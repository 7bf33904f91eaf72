"""What a waiting thread waits for, from its memory: read beside it, without stopping it.

The kernel lets a process read the memory of another where it would let it attach a debugger. Nothing is written.
"""

from __future__ import annotations

import os
import re
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from antifreeze.diagnosis import ProcSnapshot

_PROC = Path("/proc")
_ABSOLUTE = 1  # TIMER_ABSTIME
_PRIVATE = 128  # FUTEX_PRIVATE_FLAG
_WAIT_BITSET, _LOCK_PI = 9, 6
_REALTIME = 256  # FUTEX_CLOCK_REALTIME
_MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r.x\S* \S+ \S+ \S+ +(/.*)")
_STACK_NBYTES = 16 * 1024
_PLAIN = re.compile(r"(ld-linux|libc[.-]|libpthread|libdl|libm[.-]|libstdc\+\+|libgcc_s|libpython|python)")
_MOST_LIBRARIES = 4


@dataclass(frozen=True, slots=True)
class Wait:
    """What is known of a wait beyond its call."""

    limit_s: float | None = None
    shared: bool = False
    owner: int = 0
    libraries: tuple[str, ...] = ()


class Mapped(NamedTuple):
    """Code of a library in the memory of a process."""

    start: int
    end: int
    name: str


def wait_of(pid: int, seen: ProcSnapshot, libraries: Sequence[Mapped], *, proc: Path = _PROC) -> Wait:
    """Return what the call that a thread is in says of its wait."""
    arguments = seen.arguments
    if len(arguments) < 7:  # six, then the stack pointer
        return Wait()
    memory = _Memory(proc / str(pid) / "mem")
    try:
        limit_s = _limit_s(memory, seen.syscall, arguments)
        if seen.syscall != "futex":
            return Wait(limit_s=limit_s)
        return Wait(
            limit_s=limit_s,
            shared=not arguments[1] & _PRIVATE,
            owner=_owner(memory, arguments[0]),
            libraries=_called(memory.read(arguments[6], _STACK_NBYTES), libraries),
        )
    finally:
        memory.close()


def libraries_of(pid: int, *, proc: Path = _PROC) -> tuple[Mapped, ...]:
    """Return the code of libraries that a process has mapped, in the order of addresses."""
    try:
        text = (proc / str(pid) / "maps").read_text(errors="replace")
    except OSError:
        return ()
    found = (_MAPPED.match(line) for line in text.splitlines())
    rows = [Mapped(int(match[1], 16), int(match[2], 16), match[3].rpartition("/")[2]) for match in found if match]
    return tuple(row for row in rows if not _PLAIN.match(row.name))


class _Memory:
    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def read(self, address: int, nbytes: int) -> bytes:
        """Return what stands there, as far as it can be read."""
        if self._fd < 0:
            return b""
        for size in (nbytes, 4096 - address % 4096):  # the stack may end within it
            try:
                return os.pread(self._fd, min(size, nbytes), address)
            except (OSError, OverflowError):
                continue
        return b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _limit_s(memory: _Memory, call: str, arguments: tuple[int, ...]) -> float | None:
    if call == "clock_nanosleep":
        return _until(memory, arguments[2], arguments[0] if arguments[1] & _ABSOLUTE else None)
    if call == "nanosleep":
        return _until(memory, arguments[0], None)
    if call in ("poll", "epoll_wait", "epoll_pwait"):
        milliseconds = _signed(arguments[2] if call == "poll" else arguments[3])
        return milliseconds / 1000 if milliseconds >= 0 else float("inf")
    if call in ("select", "pselect6", "ppoll"):
        where = {"select": 4, "pselect6": 4, "ppoll": 2}[call]
        unit_s = 1e-6 if call == "select" else 1e-9
        return _until(memory, arguments[where], None, unit_s) if arguments[where] else float("inf")
    if call == "futex":
        kind = arguments[1] & 127
        if not arguments[3]:
            return float("inf")
        clock = time.CLOCK_REALTIME if arguments[1] & _REALTIME or kind == _LOCK_PI else time.CLOCK_MONOTONIC
        return _until(memory, arguments[3], clock if kind in (_WAIT_BITSET, _LOCK_PI) else None)
    return float("inf") if call in ("read", "recvfrom", "recvmsg", "accept", "accept4", "wait4", "pause") else None


def _until(memory: _Memory, address: int, clock: int | None, unit_s: float = 1e-9) -> float | None:
    """Return the seconds of a time in memory: from now, or until then if it is a time of a clock."""
    raw = memory.read(address, 16)
    if len(raw) < 16:
        return None
    seconds, fraction = struct.unpack("<qq", raw)
    length_s = float(seconds) + float(fraction) * unit_s
    try:
        return length_s if clock is None else max(0.0, length_s - time.clock_gettime(clock))
    except (OSError, OverflowError):  # a clock of that process alone
        return None


def _signed(number: int) -> int:
    return (number & 0xFFFFFFFF) - (1 << 32 if number & 0x80000000 else 0)


def _owner(memory: _Memory, address: int) -> int:
    """Return the thread that holds a lock of the C library: its number stands behind the word that is waited for."""
    raw = memory.read(address, 12)
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
    return tuple(names)[:_MOST_LIBRARIES]
