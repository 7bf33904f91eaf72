"""What a process does, as ``/proc`` shows it: counters that grow with its progress, and the wait it is in.

Counters are cheap and can be read often. A snapshot says where a thread is: its system call, and the file, pipe or
socket that the call is about. What cannot be read is empty, and then the cause is unknown.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

from antifreeze.core import PROC, children_of, children_of_thread, natural, pairs_of, read_proc_file, stat_of
from antifreeze.diagnosis._findings import NO_TARGET, Evidence, ProcSnapshot, Target, TargetKind
from antifreeze.diagnosis._syscalls import EPOLL, TAKES_FD, syscall_name

_FAMILY = 16  # of a worker that has started many programs, these are enough to see that something moves
_WAKES = 3  # a signal or a debugger wakes a sleeper once or twice; more often, it wakes by itself
_SLEEPS = ("nanosleep", "clock_nanosleep")
_HEX = re.compile("(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):[0-9A-Fa-f]{1,4}")
_MAX_LINES = 100_000  # a busy host lists more connections than a diagnosis should wait for


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What can be read often: enough to tell a process that makes progress from one that does not."""

    state: str
    cpu_s: float
    """CPU time of all its threads and of the programs that it has started."""
    moved_bytes: int
    """Bytes read and written by them. What comes through ``recv`` is not counted by the kernel."""
    rss_nbytes: int
    """Private memory, without mapped files."""

    def moved_since(self, before: Counters, noise_s: float = 0.0) -> bool:
        """True if CPU time, beyond ``noise_s``, or bytes have grown since ``before``."""
        return self.cpu_s > before.cpu_s + noise_s or self.moved_bytes > before.moved_bytes


def read_counters(pid: int, *, alone: bool = False, proc: Path = PROC) -> Counters | None:
    """Return what is cheap to know of a process, or None when it is gone; with ``alone``, without what it started."""
    own = stat_of(pid, proc=proc)
    if own is None:
        return None
    cpu_ticks = moved_bytes = 0
    for member in [pid] if alone else _family(proc, pid):
        stat = stat_of(member, proc=proc)
        if stat is not None:
            cpu_ticks += stat.cpu_ticks
            moved_bytes += _moved_bytes(proc, member) + stat.page_faults * os.sysconf("SC_PAGE_SIZE")
    cpu_s = cpu_ticks / os.sysconf("SC_CLK_TCK")
    return Counters(state=own.state, cpu_s=cpu_s, moved_bytes=moved_bytes, rss_nbytes=rss_of(pid, proc=proc))


def state_of(pid: int, *, proc: Path = PROC) -> str:
    """Return the state of a process as one letter; nothing when it is gone. A tenth of the work of ``counters``."""
    stat = stat_of(pid, proc=proc)
    return "" if stat is None else stat.state


def rss_of(pid: int, *, proc: Path = PROC) -> int:
    """Return the bytes of memory that a process shares with no file; 0 when it is gone."""
    pages = read_proc_file(proc / str(pid) / "statm").split()
    own = _number(pages[1]) - _number(pages[2]) if len(pages) > 2 else 0
    return max(0, own) * os.sysconf("SC_PAGE_SIZE")


def read_proc(pid: int, tid: int | None = None, *, proc: Path = PROC) -> ProcSnapshot:
    """Return where a thread of a process is, the main thread if none is named. What cannot be read is empty."""
    home = proc / str(pid)
    if tid is not None:
        home = home / "task" / str(tid)
    status = pairs_of(read_proc_file(home / "status"))
    wchan = read_proc_file(home / "wchan").strip()
    call, fd, arguments = _syscall(read_proc_file(home / "syscall"))
    return ProcSnapshot(
        state=status.get("State", "")[:1],
        wchan="" if wchan == "0" else wchan,
        syscall=call,
        syscall_fd=fd,
        syscall_target=_target(home, fd, call) if fd >= 0 else NO_TARGET,
        threads=_number(status.get("Threads", "")),
        children=sum(1 for _ in children_of(pid, proc=proc)) if tid is None else 0,
        wakes=_number(status.get("voluntary_ctxt_switches", "")),
        arguments=arguments,
    )


def evidence_of(
    pid: int,
    before: Counters | None,
    after: Counters | None,
    interval_s: float,
    first_look: ProcSnapshot,
    second_look: ProcSnapshot,
    **known: Any,
) -> Evidence:
    """Return the evidence of counters and snapshots that were taken ``interval_s`` apart, with what else is known."""
    seen = after or before
    cpu_s = after.cpu_s - before.cpu_s if before and after else 0.0
    moved_bytes = after.moved_bytes - before.moved_bytes if before and after else 0
    where = {field.name: getattr(second_look, field.name) for field in fields(ProcSnapshot)}
    return Evidence(
        pid=pid,
        cpu_share=max(0.0, cpu_s / interval_s) if interval_s > 0 else 0.0,
        moved_bytes=max(0, moved_bytes),
        changing=_changing(first_look, second_look),
        rss_nbytes=seen.rss_nbytes if seen else 0,
        **where,
        **known,
    )


def _changing(first: ProcSnapshot, second: ProcSnapshot) -> bool:
    if not (first.state and second.state):
        return False
    where = (first.syscall, first.wchan, first.syscall_target) != (second.syscall, second.wchan, second.syscall_target)
    # A loop of short sleeps is almost always found in the same call. That it wakes gives it away.
    return where or (second.syscall in _SLEEPS and second.wakes - first.wakes >= _WAKES)


def _number(text: str) -> int:
    return natural(text) or 0


def _moved_bytes(proc: Path, pid: int) -> int:
    """Return the bytes that a process has read and written."""
    counts = pairs_of(read_proc_file(proc / str(pid) / "io"))
    return _number(counts.get("rchar", "")) + _number(counts.get("wchar", ""))


def _family(proc: Path, pid: int) -> list[int]:
    """Return a process and those below it. A worker that waits for a program moves when the program does."""
    family = [pid]
    for member in family:
        # Those that its main thread has started, which is where user code runs: other threads can be many.
        family += children_of_thread(member, member, proc=proc)[: _FAMILY - len(family)]
    return family


def _syscall(text: str) -> tuple[str, int, tuple[int, ...]]:
    """Return the name of the call, its descriptor or -1, and all that it was given.

    ``running`` and ``-1`` mean that it is in none.
    """
    words = text.split()
    number = natural(words[0]) if words else None
    if number is None:
        return "", -1, ()
    name = syscall_name(number, platform.machine())
    try:
        arguments = tuple(int(word, 16) for word in words[1:])
    except ValueError:
        arguments = ()
    fd = arguments[0] if name in TAKES_FD and arguments else -1
    return name, fd if fd < 2**31 else -1, arguments


_LINKS = (
    ("pipe:", TargetKind.PIPE),
    ("anon_inode:[timerfd]", TargetKind.TIMER),
    ("anon_inode:", TargetKind.EVENT),
    ("/", TargetKind.FILE),
)
"""How the kernel's names of objects begin."""


def _target(home: Path, fd: int, call: str) -> Target:
    """Return what a descriptor of a process refers to."""
    try:
        # A name need not be text, and what is said of it must be printable.
        link = os.fsencode((home / "fd" / str(fd)).readlink()).decode("utf-8", "replace")
    except OSError:
        return NO_TARGET
    if link.startswith("socket:["):
        return _find_socket(home / "net", link[8:-1])
    if call in EPOLL and (watched := _watched(home, fd)) is not None:
        return watched
    return Target(next((kind for start, kind in _LINKS if link.startswith(start)), TargetKind.UNKNOWN), link)


def _watched(home: Path, fd: int) -> Target | None:
    """Return the first socket that leads elsewhere among those that an epoll descriptor watches."""
    lines = read_proc_file(home / "fdinfo" / str(fd)).splitlines()
    watched = [line.split()[1] for line in lines if line.startswith("tfd:")]
    found = [_target(home, _number(other), "") for other in watched[:_FAMILY]]
    sockets = [target for target in found if target.is_socket]
    # An event loop also watches a socket pair by which it wakes itself up. It does not wait for that.
    far = [target for target in sockets if target.kind is TargetKind.PEER]
    return next(iter(far or sockets), None)


def _find_socket(net: Path, inode: str) -> Target:
    """Return the socket with this inode. ``net`` is ``/proc/<pid>/net``: each process may have its own."""
    for name in ("tcp", "tcp6", "udp", "udp6"):
        row = _row(net / name, inode, column=9)
        if row is None:
            continue
        local, remote = _address(row[1]), _address(row[2])
        if remote.endswith(":0"):
            return Target(TargetKind.SOCKET, f"socket listening on {local}")
        return Target(TargetKind.PEER, f"socket to {remote}")
    row = _row(net / "unix", inode, column=6)
    if row is not None:
        path = f" at {row[7]}" if len(row) > 7 else ""
        return Target(TargetKind.SOCKET, f"socket to a process of this machine{path}")
    return Target(TargetKind.SOCKET, f"socket:[{inode}]")


def _row(table: Path, inode: str, column: int) -> list[str] | None:
    try:
        with table.open(encoding="utf-8", errors="replace") as lines:
            for line in islice(lines, _MAX_LINES):
                row = line.split()
                if len(row) > column and row[column] == inode:
                    return row
    except OSError:  # no such process, or no such protocol
        pass
    return None


def _address(text: str) -> str:
    """Return ``10.0.0.1:443`` for ``0100000A:01BB``: words of four bytes, each in the order of the machine."""
    if not _HEX.fullmatch(text):
        return "an address that cannot be read"
    host, _, port = text.partition(":")
    words = [int(host[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(host), 8)]
    packed = b"".join(words)
    if len(packed) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, packed)}:{int(port, 16)}"
    mapped = packed[:12] == bytes(10) + b"\xff\xff"
    if mapped:
        return f"{socket.inet_ntop(socket.AF_INET, packed[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"
