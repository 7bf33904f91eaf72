"""What a process does, as ``/proc`` shows it: counters that grow with its progress, the wait it is in, and its memory.

Counters are cheap and can be read often. A snapshot says where a thread is: its system call, and the file, pipe or
socket that the call is about. Memory control groups, of version 1 and 2, say what it may hold, and how often memory ran
out. What cannot be read is empty, and then the cause is unknown.
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
from typing import Any, NamedTuple

from antifreeze.core import PROC, children_of, children_of_thread, natural, pairs_of, read_proc_file, stat_of
from antifreeze.diagnosis._findings import NO_TARGET, Evidence, ProcSnapshot, Target, TargetKind, words_of

_FAMILY = 16  # of a worker that has started many programs, these are enough to see that something moves
_WAKES = 3  # a signal or a debugger wakes a sleeper once or twice; more often, it wakes by itself
_SLEEPS = ("nanosleep", "clock_nanosleep")
_HEX = re.compile("(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}):[0-9A-Fa-f]{1,4}")
_MAX_LINES = 100_000  # a busy host lists more connections than a diagnosis should wait for
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_EVENTS = ("memory.events", "memory.oom_control")

# -- progress --------------------------------------------------------------------------------------------------------


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
            counts = pairs_of(read_proc_file(proc / str(member) / "io"))
            moved_bytes += _number(counts.get("rchar", "")) + _number(counts.get("wchar", ""))
            moved_bytes += stat.page_faults * os.sysconf("SC_PAGE_SIZE")
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


class Look(NamedTuple):
    """What was seen of a process at one time."""

    at_s: float
    counters: Counters | None
    snapshot: ProcSnapshot


def evidence_of(pid: int, first: Look, second: Look, **known: Any) -> Evidence:
    """Return the evidence of two looks, with what else is known."""
    before, after, interval_s = first.counters, second.counters, second.at_s - first.at_s
    seen = after or before
    cpu_s = after.cpu_s - before.cpu_s if before and after else 0.0
    moved_bytes = after.moved_bytes - before.moved_bytes if before and after else 0
    where = {field.name: getattr(second.snapshot, field.name) for field in fields(ProcSnapshot)}
    return Evidence(
        pid=pid,
        cpu_share=max(0.0, cpu_s / interval_s) if interval_s > 0 else 0.0,
        moved_bytes=max(0, moved_bytes),
        changing=_changing(first.snapshot, second.snapshot),
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


def _family(proc: Path, pid: int) -> list[int]:
    """Return a process and those below it. A worker that waits for a program moves when the program does."""
    family = [pid]
    for member in family:
        # Those that its main thread has started, which is where user code runs: other threads can be many.
        family += children_of_thread(member, member, proc=proc)[: _FAMILY - len(family)]
    return family


# -- system calls ----------------------------------------------------------------------------------------------------

_X86_64 = """
read 0  write 1  open 2  close 3  stat 4  fstat 5  lstat 6  poll 7  lseek 8  mmap 9  munmap 11  ioctl 16
pread64 17  pwrite64 18  readv 19  writev 20  access 21  select 23  sched_yield 24  msync 26  madvise 28
pause 34  nanosleep 35  sendfile 40  connect 42  accept 43  sendto 44  recvfrom 45  sendmsg 46  recvmsg 47
clone 56  fork 57  vfork 58  execve 59  exit 60  wait4 61  semop 65  msgsnd 69  msgrcv 70  fcntl 72  flock 73
fsync 74  fdatasync 75  truncate 76  ftruncate 77  getdents 78  rename 82  mkdir 83  rmdir 84  unlink 87
readlink 89  rt_sigtimedwait 128  rt_sigsuspend 130  statfs 137  fstatfs 138  futex 202  io_getevents 208
getdents64 217  restart_syscall 219  semtimedop 220  fadvise64 221  clock_nanosleep 230  exit_group 231
epoll_wait 232  waitid 247  openat 257  mkdirat 258  newfstatat 262  unlinkat 263  renameat 264
readlinkat 267  faccessat 269  pselect6 270  ppoll 271  epoll_pwait 281  fallocate 285  accept4 288
preadv 295  pwritev 296  recvmmsg 299  sendmmsg 307  renameat2 316  getrandom 318  copy_file_range 326
preadv2 327  pwritev2 328  statx 332  io_uring_enter 426  clone3 435  openat2 437  faccessat2 439  epoll_pwait2 441
futex_waitv 449  futex_wait 455
"""
_AARCH64 = """
io_getevents 4  epoll_pwait 22  fcntl 25  ioctl 29  flock 32  mkdirat 34  unlinkat 35  renameat 38  statfs 43
fstatfs 44  truncate 45  ftruncate 46  fallocate 47  faccessat 48  openat 56  close 57  getdents64 61
lseek 62  read 63  write 64  readv 65  writev 66  pread64 67  pwrite64 68  preadv 69  pwritev 70  sendfile 71
pselect6 72  ppoll 73  readlinkat 78  newfstatat 79  fstat 80  fsync 82  fdatasync 83  exit 93  exit_group 94
waitid 95  futex 98  nanosleep 101  clock_nanosleep 115  sched_yield 124  restart_syscall 128
rt_sigsuspend 133  rt_sigtimedwait 137  msgrcv 188  msgsnd 189  semtimedop 192  semop 193  accept 202
connect 203  sendto 206  recvfrom 207  sendmsg 211  recvmsg 212  munmap 215  clone 220  execve 221  mmap 222
fadvise64 223  msync 227  madvise 233  accept4 242  recvmmsg 243  wait4 260  sendmmsg 269  renameat2 276
getrandom 278  copy_file_range 285  preadv2 286  pwritev2 287  statx 291  io_uring_enter 426  clone3 435  openat2 437
faccessat2 439  epoll_pwait2 441  futex_waitv 449  futex_wait 455
"""


def _table(text: str) -> dict[int, str]:
    words = text.split()
    return {int(number): name for name, number in zip(words[::2], words[1::2], strict=True)}


_TABLES = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
_EPOLL = words_of("epoll_wait epoll_pwait epoll_pwait2")
_TAKES_FD = _EPOLL | words_of(
    """read write close fstat lseek ioctl pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 connect accept
    accept4 sendto recvfrom sendmsg recvmsg recvmmsg sendmmsg fcntl flock fsync fdatasync ftruncate getdents getdents64
    fstatfs fadvise64 fallocate copy_file_range io_uring_enter"""
)
"""Calls whose first argument is the descriptor that is waited for."""


def _syscall(text: str) -> tuple[str, int, tuple[int, ...]]:
    """Return the name of the call, its descriptor or -1, and all that it was given.

    ``running`` and ``-1`` mean that it is in none.
    """
    words = text.split()
    number = natural(words[0]) if words else None
    if number is None:
        return "", -1, ()
    name = _TABLES.get(platform.machine(), {}).get(number, str(number))
    try:
        arguments = tuple(int(word, 16) for word in words[1:])
    except ValueError:
        arguments = ()
    fd = arguments[0] if name in _TAKES_FD and arguments else -1
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
    if call in _EPOLL and (watched := _watched(home, fd)) is not None:
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
    if len(packed) == 4 or packed[:12] == bytes(10) + b"\xff\xff":  # the second is version 4 inside of version 6
        return f"{socket.inet_ntop(socket.AF_INET, packed[-4:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{int(port, 16)}"


# -- memory ----------------------------------------------------------------------------------------------------------


def memory_groups(pid: int | str = "self", *, root: Path = Path("/")) -> list[Path]:
    """Return the folders of the memory control groups that a process is in, each before those above it."""
    found: list[Path] = []
    for line in read_proc_file(root / "proc" / str(pid) / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":  # version 2
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        # In a container the path may be the host's and not exist here; the mount itself is the container's group then.
        own = top / path.lstrip("/")
        found += [group for group in (own, *own.parents) if group.is_relative_to(top)]
    return list(dict.fromkeys(found))


def memory_limits(pid: int | str = "self", *, root: Path = Path("/")) -> list[int]:
    """Return the limits in bytes of the memory control groups that a process is in, innermost first."""
    files = (group / name for group in memory_groups(pid, root=root) for name in _LIMITS)
    limits = (natural(read_proc_file(file)) for file in files)
    return [limit for limit in limits if limit is not None]  # else there is no such group here, or it says "max"


def oom_kills(*, root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed because memory ran out: in our control group, or on the machine.

    The count of the group is exact, no matter which process needed the memory. That of the machine includes the kills
    of other jobs, so it is used only where the group has none.
    """
    files = [group / name for group in memory_groups(root=root) for name in _EVENTS]
    for file in [*files, root / "proc/vmstat"]:
        count = pairs_of(read_proc_file(file)).get("oom_kill")
        if count is not None:
            return natural(count) or 0
    return 0
