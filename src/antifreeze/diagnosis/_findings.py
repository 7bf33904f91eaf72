"""From evidence to a cause: pure, so that every case can be tested without a process that is stuck in it.

What is asked, in this order:

1. Has it ended? The signal or the exit code says how, the counters of the kernel show if memory ran out.
2. Is it stopped, traced, or in a wait that no signal ends? The state says so.
3. Does it use a core? Then it computes, whatever its main thread waits for.
4. Is it seen in different calls? Then it keeps retrying.
5. What does the main thread wait for? The system call says so; where that cannot be read, the wait channel.
   The Python stack decides where a call can mean several things.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from antifreeze.diagnosis._causes import CRASHES, Cause, describe_exit
from antifreeze.diagnosis._stack import Frame, called_by_user, user_frames

STARTING = frozenset({"start", "starting", "started", "load", "init"})
"""The stages before the first task."""


class TargetKind(enum.StrEnum):
    """What kind of object a descriptor refers to."""

    UNKNOWN = enum.auto()
    FILE = enum.auto()
    PIPE = enum.auto()
    PEER = enum.auto()
    """A socket that is connected to an address."""
    SOCKET = enum.auto()
    """Any other socket: one that listens, that leads to a process of this machine, or whose peer is not known."""
    TIMER = enum.auto()
    EVENT = enum.auto()
    """An object of the kernel without a file, such as an eventfd."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a system call is about: the object behind its descriptor."""

    kind: TargetKind = TargetKind.UNKNOWN
    text: str = ""
    """For messages: a path, ``pipe:[5]``, ``socket to 10.0.0.1:443``."""

    @property
    def is_socket(self) -> bool:
        """True for sockets of every kind."""
        return self.kind in (TargetKind.PEER, TargetKind.SOCKET)


NO_TARGET = Target()
"""The call has no descriptor, or it could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcSnapshot:
    """What is read when something is wrong: where a thread is."""

    state: str = ""
    """The letter of ``/proc/<pid>/stat``; empty when it could not be read."""
    wchan: str = ""
    syscall: str = ""
    """The system call that the thread is in; its number where the name is not known."""
    syscall_fd: int = -1
    syscall_target: Target = NO_TARGET
    """What the descriptor refers to that the call was given."""
    threads: int = 0
    children: int = 0
    wakes: int = 0
    """How often the thread has begun to wait."""
    arguments: tuple[int, ...] = ()
    """What the call was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence(ProcSnapshot):
    """All that is known of a worker at the time of a finding, with where its main thread is. What is not is empty."""

    pid: int = 0
    exit_code: int | None = None
    """Negative: the signal that ended it. None: it lives."""
    orphaned: bool = False
    """True if the process that it was forked from is gone, so that its exit code is lost."""
    oom_kills: int = 0
    """How far the kernel's counters of out-of-memory kills went up."""
    cpu_share: float = 0.0
    """Seconds of CPU per second, over the time it was watched."""
    moved_bytes: int = 0
    changing: bool = False
    """True if it was seen in different calls: it waits often, not long."""
    rss_nbytes: int = 0
    stage: str = ""
    """The name of the stage in its board record, in any case; one of ``STARTING`` before the first task."""
    frames: tuple[Frame, ...] = ()
    """The Python stack of the main thread, innermost first."""
    forked: bool = False
    """True if it is a copy of the trainer, made by ``fork``."""
    nobody_wakes: bool = False
    """True if it waits for a lock of the same process that none of its threads could release."""
    libraries: tuple[str, ...] = ()
    """The native libraries that the waiting thread has called into, innermost first."""
    limit_s: float | None = None
    """How much longer the call waits at most; infinite: it has no limit. None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cause, with what speaks for it."""

    cause: Cause
    evidence_lines: tuple[str, ...]
    """For messages. Nothing that the title says is repeated here."""
    exit_code: int | None = None
    frame: Frame | None = None
    """The innermost line of user code that the main thread was on, if it is known."""
    words: str = ""
    """What the worker does, where the title of the cause would not be true."""
    advice: str = ""
    """What to do about it, where more is known than the cause."""

    @property
    def title(self) -> str:
        """What the worker did, for a message; with the name of the signal if one has ended it."""
        if self.words:
            return self.words
        if self.exit_code is None or self.cause is Cause.OUT_OF_MEMORY:
            return self.cause.title
        was_killed = self.exit_code < 0 and -self.exit_code not in CRASHES
        return f"was {describe_exit(self.exit_code)}" if was_killed else describe_exit(self.exit_code)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.advice or self.cause.hint


# -- the rules --------------------------------------------------------------------------------------------------------

BUSY_SHARE = 0.5
"""A process that uses this much of a core computes."""

_BY_STATE = {"T": Cause.STOPPED, "t": Cause.TRACED, "Z": Cause.EXITED, "X": Cause.EXITED}
_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "in a wait that no signal ends",
    "T": "stopped",
    "t": "held by a debugger",
    "Z": "ended",
    "X": "ended",
}
_FREEZERS = ("refrigerator", "freezer")  # a frozen control group shows as S or D, and only by this
_NO_MEMORY = "mem_cgroup_oom"  # a control group that is full, and whose processes the kernel may not kill
_STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}


def words_of(text: str) -> frozenset[str]:
    """Return the words of a table."""
    return frozenset(text.split())


def _by_word(table: dict[Cause, str]) -> dict[str, Cause]:
    return {word: cause for cause, words in table.items() for word in words.split()}


_CALLS = _by_word(
    {
        Cause.SLEEPING: "nanosleep clock_nanosleep pause rt_sigsuspend rt_sigtimedwait",
        Cause.LOCK: "futex futex_wait futex_waitv fcntl flock semop semtimedop msgrcv msgsnd",
        Cause.CHILD: "wait4 waitid vfork",
        Cause.NETWORK: """recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg connect accept accept4 poll ppoll select
            pselect6 epoll_wait epoll_pwait epoll_pwait2""",
        Cause.FILE: """open openat openat2 close stat fstat lstat newfstatat statx access faccessat faccessat2 statfs
            fstatfs getdents getdents64 readlink readlinkat rename renameat renameat2 unlink unlinkat mkdir mkdirat
            fsync fdatasync truncate ftruncate fallocate copy_file_range sendfile lseek mmap msync io_getevents""",
    }
)
_BY_TARGET = {
    TargetKind.PIPE: Cause.CHILD,
    TargetKind.PEER: Cause.NETWORK,
    TargetKind.SOCKET: Cause.NETWORK,
    TargetKind.TIMER: Cause.SLEEPING,
    TargetKind.EVENT: Cause.LOCK,
    TargetKind.FILE: Cause.FILE,
}
_READS = words_of("read readv pread64 preadv preadv2")
_WRITES = words_of("write writev pwrite64 pwritev pwritev2")
_SPAWNS = words_of("vfork clone clone3")
_AMBIGUOUS = words_of("futex futex_wait poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2")
"""Calls that waits of several kinds end in: here the Python stack knows more."""

_CHANNELS = _by_word(
    {
        Cause.SLEEPING: "nanosleep",
        Cause.LOCK: "futex fcntl_setlk locks_lock flock",
        Cause.FULL_PIPE: "pipe_write",
        Cause.CHILD: "pipe_read do_wait",
        Cause.NETWORK: "wait_woken sk_wait skb_wait csk_accept unix_stream ep_poll poll_schedule do_select",
        Cause.FILE: "nfs rpc_wait fuse request_wait_answer folio_wait io_schedule",
    }
)
"""Parts of names of kernel functions, from the particular to the general."""

_PROMPTS = ("/pdb.py", "/bdb.py", "/IPython/", "/pydevd", "/debugpy/", "/ipdb/")
"""Parts of the files of debuggers that people talk to."""

# Order: a client of a network service waits in threading.Event for its own event loop. It is the network it waits for.
_LIBRARIES = _by_word(
    {
        Cause.CHILD: "/subprocess.py /multiprocessing/connection.py /multiprocessing/popen_",
        Cause.NETWORK: """/fsspec/asyn.py /aiohttp/ /urllib3/ /botocore/ /requests/ /http/client.py /ssl.py /socket.py
            /asyncio/""",
        Cause.LOCK: """/threading.py /multiprocessing/synchronize.py /concurrent/futures/ /queue.py
            importlib._bootstrap>:acquire""",
    }
)
"""Parts of ``file:function`` of the libraries that user code has called."""


def find_cause(evidence: Evidence) -> Finding:
    """Return the cause that the evidence shows, with the evidence as lines for a person."""
    cause = _death(evidence) if evidence.exit_code is not None else _stall(evidence)
    if cause in (Cause.BUSY, Cause.RETRYING, Cause.UNKNOWN) and evidence.state and _is_starting(evidence):
        cause = Cause.STARTUP
    frames = user_frames(evidence.frames)
    lines = [*_lines_of_process(evidence, cause), *map(str, frames)]
    if cause is Cause.ORPHANED:
        lines = ["how it ended is not known"]
    waits = cause is Cause.OUT_OF_MEMORY and evidence.exit_code is None
    words = "waits for memory, of which its control group has none left" if waits else ""
    return Finding(
        cause=cause,
        evidence_lines=tuple(lines),
        exit_code=evidence.exit_code,
        frame=frames[0] if frames else None,
        words=words,
    )


def _death(evidence: Evidence) -> Cause:
    exit_code = evidence.exit_code or 0
    if exit_code >= 0:
        return Cause.EXITED
    if -exit_code in CRASHES:
        return Cause.CRASHED
    return Cause.OUT_OF_MEMORY if exit_code == -9 and evidence.oom_kills > 0 else Cause.KILLED


def _stall(evidence: Evidence) -> Cause:
    if evidence.orphaned:
        return Cause.ORPHANED
    if evidence.state in _BY_STATE or not evidence.state:
        return _BY_STATE.get(evidence.state, Cause.UNKNOWN)
    if any(word in evidence.wchan for word in _FREEZERS):
        return Cause.STOPPED
    if evidence.state == "D":
        return _deep_wait(evidence)
    # On a machine with too few cores a loop gets a small share. It is still seen running each time.
    running = evidence.state == "R" and not evidence.syscall and not evidence.changing
    if evidence.cpu_share >= BUSY_SHARE or running:
        return Cause.BUSY
    if evidence.changing:
        return Cause.RETRYING
    return _wait(evidence)


def _deep_wait(evidence: Evidence) -> Cause:
    """Return what a wait is for that no signal ends. Nearly always it is a disk."""
    if _NO_MEMORY in evidence.wchan:
        return Cause.OUT_OF_MEMORY
    if _starts_program(evidence):
        return Cause.CHILD
    return Cause.FILE if evidence.moved_bytes else Cause.DEAD_DISK  # a disk that gives bytes is slow, not dead


def _starts_program(evidence: Evidence) -> bool:
    """True if it starts a program: it waits, as if for a disk, until the new process has begun it."""
    channel = evidence.wchan in ("", "kernel_clone", "_do_fork", "do_fork") or "vfork" in evidence.wchan
    called = evidence.syscall in _SPAWNS or (not evidence.syscall and evidence.wchan != "")
    return evidence.state == "D" and channel and called


def _wait(evidence: Evidence) -> Cause:
    """Return what the main thread waits for."""
    call = evidence.syscall
    if any(part in frame.file for frame in evidence.frames for part in _PROMPTS):
        return Cause.INPUT
    if evidence.forked and evidence.nobody_wakes:
        return Cause.FORK
    if call in _READS | _WRITES:
        return _transfer(evidence, writes=call in _WRITES)
    cause = _CALLS.get(call) or _by_part(_CHANNELS, evidence.wchan, Cause.UNKNOWN)
    if cause is not Cause.UNKNOWN and (call not in _AMBIGUOUS or evidence.syscall_target.is_socket):
        return cause
    text = "\n".join(f"{frame.file}:{frame.function}" for frame in called_by_user(evidence.frames))
    return _by_part(_LIBRARIES, text, cause)


def _by_part(table: dict[str, Cause], text: str, otherwise: Cause) -> Cause:
    """Return the cause of the first entry that is a part of a text."""
    return next((cause for part, cause in table.items() if part in text), otherwise)


def _transfer(evidence: Evidence, *, writes: bool) -> Cause:
    """Return what a read or a write waits for, by what is at the other end."""
    kind = evidence.syscall_target.kind
    if not writes and evidence.syscall_fd == 0:
        return Cause.INPUT
    if writes and (kind is TargetKind.PIPE or evidence.syscall_fd in (1, 2)):
        return Cause.FULL_PIPE
    return _BY_TARGET.get(kind) or _by_part(_CHANNELS, evidence.wchan, Cause.UNKNOWN)


def _is_starting(evidence: Evidence) -> bool:
    return evidence.stage.lower() in STARTING


def _lines_of_process(evidence: Evidence, cause: Cause) -> list[str]:
    lines = []
    if evidence.exit_code is not None:
        # Every other title of a process that has ended says how it ended.
        lines += [describe_exit(evidence.exit_code)] * (cause is Cause.OUT_OF_MEMORY)
    elif evidence.state:
        lines += [_line_of_state(evidence), f"{evidence.cpu_share:.2f} s of CPU per second"]
    else:
        lines.append(f"nothing can be read of process {evidence.pid}")
    if evidence.oom_kills and cause is Cause.OUT_OF_MEMORY:
        lines.append(f"the kernel's count of out-of-memory kills went up by {evidence.oom_kills}")
    if evidence.rss_nbytes and cause in (Cause.OUT_OF_MEMORY, Cause.KILLED):
        lines.append(f"it held {_megabytes(evidence.rss_nbytes)} of memory")
    if evidence.moved_bytes and evidence.exit_code is None:
        lines.append(f"{_megabytes(evidence.moved_bytes)} read and written while it was watched")
    if evidence.changing and evidence.exit_code is None:
        lines.append("it was seen in different system calls: it wakes up and waits again")
    if evidence.limit_s is not None and cause is Cause.SLEEPING:
        lines.append(f"{_duration(evidence.limit_s)} of this sleep are left")
    if evidence.libraries:
        lines.append(f"native code that it has called: {', '.join(evidence.libraries)}")
    if cause is Cause.FORK:
        lines.append("it was forked from the trainer, and no thread of it could wake it")
    if evidence.exit_code is None and _starts_program(evidence):
        lines.append("it is starting a program, and the new process has not begun it yet")
    if evidence.threads > 1 or evidence.children:
        lines.append(f"threads: {evidence.threads}, processes that it started: {evidence.children}")
    if _is_starting(evidence):
        lines.append("it was still starting: its first task had not begun")
    return lines


def _line_of_state(evidence: Evidence) -> str:
    """Return where the main thread is, such as ``process state S, in system call recvfrom on socket to ...``."""
    line = f"process state {evidence.state}"
    if evidence.syscall:
        line += f", in system call {evidence.syscall}"
        stream = _STREAMS.get(evidence.syscall_fd)
        if target := evidence.syscall_target.text:
            line += f" on {target}" + (f", its {stream}" if stream else "")
    elif evidence.state in _STATES:
        line += f", {_STATES[evidence.state]}"
    return line + (f" (wchan {evidence.wchan})" if evidence.wchan else "")


def _duration(seconds: float) -> str:
    """Return a time in the unit that people use for it."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
