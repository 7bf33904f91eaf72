"""What ``/proc`` says of a process, read so that a process which is stuck cannot hold its reader.

``cmdline``, ``environ`` and ``maps`` are never read: they wait for the memory lock of the process, and one that waits
for a dead disk may hold it. A process that vanishes between two reads gives empty facts, never an error.
"""

# Without /proc all facts are empty, and so every cause is unknown. macOS is such a system, and is not tested.

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antifreeze.core import natural
from antifreeze.diagnosis._evidence import NO_TARGET, Evidence, Target, TargetKind
from antifreeze.diagnosis._peers import find_socket
from antifreeze.diagnosis._syscalls import EPOLL, TAKES_FD, syscall_name

_PROC = Path("/proc")
_FAMILY = 16  # of a worker that has started many programs, these are enough to see that something moves
_WAKES = 3  # a signal or a debugger wakes a sleeper once or twice; who wakes more often does so by itself
_SLEEPS = ("nanosleep", "clock_nanosleep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What can be read often: enough to tell who moves from who stands."""

    state: str
    cpu_s: float
    """CPU time of all its threads and of the programs that it has started."""
    moved_bytes: int
    """Bytes read and written by them. What comes through ``recv`` is not counted by the kernel."""
    rss_nbytes: int
    """Memory of its own, without files that are mapped."""

    def moved_since(self, before: Counters, noise_s: float = 0.0) -> bool:
        """True if CPU time, beyond ``noise_s``, or bytes have grown since ``before``."""
        return self.cpu_s > before.cpu_s + noise_s or self.moved_bytes > before.moved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcSnapshot:
    """What is read when something is wrong: where the main thread stands."""

    state: str = ""
    wchan: str = ""
    syscall: str = ""
    syscall_fd: int = -1
    syscall_target: Target = NO_TARGET
    threads: int = 0
    children: int = 0
    wakes: int = 0
    """How often the thread has begun to wait."""
    arguments: tuple[int, ...] = ()
    """What the call was given."""


def read_counters(pid: int, *, alone: bool = False, proc: Path = _PROC) -> Counters | None:
    """Return what is cheap to know of a process, or None when it is gone; with ``alone``, without what it started."""
    fields = _stat(proc, pid)
    if not fields:
        return None
    cpu_s, moved_bytes = 0.0, 0
    for worker in [pid] if alone else _family(proc, pid):
        cpu_s += _cpu_s(stat := _stat(proc, worker))
        moved_bytes += _moved_bytes(proc, worker, stat)
    return Counters(state=fields[0], cpu_s=cpu_s, moved_bytes=moved_bytes, rss_nbytes=rss_of(pid, proc=proc))


def state_of(pid: int, *, proc: Path = _PROC) -> str:
    """Return the state of a process as one letter; nothing when it is gone. A tenth of the work of ``counters``."""
    return (_stat(proc, pid) or [""])[0]


def rss_of(pid: int, *, proc: Path = _PROC) -> int:
    """Return the bytes of memory that a process shares with no file; 0 when it is gone."""
    pages = _read(proc / str(pid) / "statm").split()
    own = _number(pages[1]) - _number(pages[2]) if len(pages) > 2 else 0
    return max(0, own) * os.sysconf("SC_PAGE_SIZE")


def read_proc(pid: int, tid: int | None = None, *, proc: Path = _PROC) -> ProcSnapshot:
    """Return where a thread of a process stands, the main thread if none is named. What cannot be read is empty."""
    home = proc / str(pid)
    if tid is not None:
        home = home / "task" / str(tid)
    status = _pairs(_read(home / "status"))
    wchan = _read(home / "wchan").strip()
    call, fd, arguments = _syscall(_read(home / "syscall"))
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


def oom_kills(*, root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for want of memory: in our control group, or on the machine.

    The count of the group is exact, whoever ran out of memory. That of the machine has the kills of other jobs in it,
    so it is taken only where the group has none.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            folder, name = root / "sys/fs/cgroup", "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.oom_control"
        else:
            continue
        # In a container the path may be the host's and not exist here; the mount itself is the container's group then.
        for group in (folder / path.lstrip("/"), folder):
            count = _pairs(_read(group / name)).get("oom_kill")
            if count is not None:
                return _number(count)
    return _number(_pairs(_read(root / "proc/vmstat")).get("oom_kill", ""))


def evidence_of(
    pid: int,
    before: Counters | None,
    after: Counters | None,
    interval_s: float,
    first_look: ProcSnapshot,
    second_look: ProcSnapshot,
    **known: Any,
) -> Evidence:
    """Return the evidence of two glances and two looks that lie ``interval_s`` apart, with what else is known."""
    seen = after or before
    cpu_s = after.cpu_s - before.cpu_s if before and after else 0.0
    moved_bytes = after.moved_bytes - before.moved_bytes if before and after else 0
    return Evidence(
        pid=pid,
        state=second_look.state,
        wchan=second_look.wchan,
        syscall=second_look.syscall,
        syscall_fd=second_look.syscall_fd,
        syscall_target=second_look.syscall_target,
        cpu_share=max(0.0, cpu_s / interval_s) if interval_s > 0 else 0.0,
        moved_bytes=max(0, moved_bytes),
        changing=_changing(first_look, second_look),
        threads=second_look.threads,
        children=second_look.children,
        rss_nbytes=seen.rss_nbytes if seen else 0,
        **known,
    )


def _changing(first: ProcSnapshot, second: ProcSnapshot) -> bool:
    if not (first.state and second.state):
        return False
    where = (first.syscall, first.wchan, first.syscall_target) != (second.syscall, second.wchan, second.syscall_target)
    # A loop of short sleeps is almost always found in the same call. That it wakes gives it away.
    return where or (second.syscall in _SLEEPS and second.wakes - first.wakes >= _WAKES)


def _read(path: Path) -> str:
    """Return the text of a file, or nothing: the process has gone, or belongs to somebody else."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _pairs(text: str) -> dict[str, str]:
    """Return ``name: value`` or ``name value`` lines as a dict."""
    words = (line.split(None, 1) for line in text.splitlines())
    return {pair[0].rstrip(":"): pair[1].strip() for pair in words if len(pair) == 2}


def _number(text: str) -> int:
    return natural(text) or 0


def _stat(proc: Path, pid: int) -> list[str]:
    """Return the fields of ``stat`` from the state on: the name before it may hold blanks and brackets."""
    return _read(proc / str(pid) / "stat").rpartition(")")[2].split()


def _cpu_s(fields: list[str]) -> float:
    """Return user and system time of a process and of the children that it waited for."""
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _moved_bytes(proc: Path, pid: int, fields: list[str]) -> int:
    """Return the bytes read and written, and the pages that were waited for: a mapped file is read without a call."""
    counts = _pairs(_read(proc / str(pid) / "io"))
    pages = _number(fields[9]) if len(fields) > 9 else 0
    return _number(counts.get("rchar", "")) + _number(counts.get("wchar", "")) + pages * os.sysconf("SC_PAGE_SIZE")


def children_of(pid: int, *, proc: Path = _PROC) -> Iterator[int]:
    """Yield the processes that a process has started and that have not been waited for."""
    try:
        tasks = sorted((proc / str(pid) / "task").iterdir())
    except OSError:  # it has gone
        return
    for task in tasks:
        yield from map(_number, _read(task / "children").split())


def _family(proc: Path, pid: int) -> list[int]:
    """Return a process and those below it. A worker that waits for a program moves when the program does."""
    family = [pid]
    for worker in family:
        # Those that its main thread has started, which is where user code runs: other threads can be many.
        started = _read(proc / str(worker) / "task" / str(worker) / "children").split()
        family += [_number(child) for child in started[: _FAMILY - len(family)]]
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
        return find_socket(home / "net", link[8:-1])
    if call in EPOLL and (watched := _watched(home, fd)) is not None:
        return watched
    return Target(next((kind for start, kind in _LINKS if link.startswith(start)), TargetKind.UNKNOWN), link)


def _watched(home: Path, fd: int) -> Target | None:
    """Return the first socket that leads elsewhere among those that an epoll descriptor watches."""
    lines = _read(home / "fdinfo" / str(fd)).splitlines()
    watched = [line.split()[1] for line in lines if line.startswith("tfd:")]
    found = [_target(home, _number(other), "") for other in watched[:_FAMILY]]
    sockets = [target for target in found if target.is_socket]
    # An event loop also watches a socket pair by which it wakes itself up. That is not who it waits for.
    far = [target for target in sockets if target.kind is TargetKind.PEER]
    return next(iter(far or sockets), None)
