"""What is known of a process, and what it speaks for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from antifreeze.diagnosis._causes import CRASHES, Cause, describe_exit
from antifreeze.diagnosis._stack import Frame

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
class Evidence:
    """All that is known of a worker at the time of a finding. What is not known is empty."""

    pid: int = 0
    exit_code: int | None = None
    """Negative: the signal that ended it. None: it lives."""
    orphaned: bool = False
    """True if the process that it was forked from is gone, so that its exit code is lost."""
    oom_kills: int = 0
    """How far the kernel's counters of out-of-memory kills went up."""
    state: str = ""
    """The letter of ``/proc/<pid>/stat``; empty when it could not be read."""
    wchan: str = ""
    syscall: str = ""
    """The system call that the main thread is in; its number where the name is not known."""
    syscall_target: Target = NO_TARGET
    """What the descriptor refers to that the call was given."""
    syscall_fd: int = -1
    cpu_share: float = 0.0
    """Seconds of CPU per second, over the time it was watched."""
    moved_bytes: int = 0
    changing: bool = False
    """True if it was seen in different calls: it waits often, not long."""
    threads: int = 0
    children: int = 0
    rss_nbytes: int = 0
    rss_limit_nbytes: int = 0
    """What it may hold; 0: no limit."""
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
