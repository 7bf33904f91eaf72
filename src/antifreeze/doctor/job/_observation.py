"""What was observed of a job: plain values that can be kept in a file and judged elsewhere."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from antifreeze.core import forms
from antifreeze.diagnosis import Frame, TargetKind

_MAX_INTEGER = 1 << 63
VERSION = 2
"""The version of the file format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One thread of a process at one moment. What could not be read is empty."""

    tid: int
    name: str = ""
    state: str = ""
    wchan: str = ""
    syscall: str = ""
    fd: int = -1
    target: str = ""
    """What the descriptor refers to, for messages."""
    target_kind: TargetKind = TargetKind.UNKNOWN
    path: str = ""
    """The file that its system call is about, if known."""
    mount: str = ""
    """The mount of that file: ``/data (nfs4, server:/export)``."""
    sectors: int = 0
    """What the disk of that file has read and written so far, for any process; 0 where the kernel does not say."""
    wakes: int = 0
    """How often it started to wait."""
    cpu_s: float = 0.0
    idle_s: float | None = None
    """Seconds since it last ran, where the kernel says so."""
    limit_s: float | None = None
    """How much longer its call waits at most: infinite if it has no limit. None: unknown."""
    shared: bool = False
    """True if the lock that it waits for can be released by another process."""
    owner: int = 0
    """The thread that holds the lock, where the lock says so."""
    libraries: tuple[str, ...] = ()
    """Native libraries that it called into, innermost first."""

    @property
    def is_out_of_memory(self) -> bool:
        """True if it waits for memory in a full control group whose processes the kernel may not kill."""
        return "mem_cgroup_oom" in self.wchan

    @property
    def is_spawning(self) -> bool:
        """True if it waits for a process that it started to run its program."""
        return self.state == "D" and self.syscall in ("vfork", "clone", "clone3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The Python lines of a thread, innermost first."""

    tid: int
    name: str = ""
    frames: tuple[Frame, ...] = ()
    sample: str = ""
    """The index of the sample that torch asks the dataset for, if visible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a job at one moment."""

    pid: int
    parent: int = 0
    name: str = ""
    program: str = ""
    """The file that it runs, such as ``python3.11``; a process may choose another name."""
    command: tuple[str, ...] = ()
    """Its command line, without what looks like a secret."""
    folder: str = ""
    """Its working directory: file names in its stacks may be relative to it."""
    state: str = ""
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    rss_nbytes: int = 0
    files: int = 0
    max_files: int = 0
    ignores_sigchld: bool = False
    """True if it ignores SIGCHLD, so that it is not notified when a child exits."""
    rank: int | None = None
    threads: tuple[Thread, ...] = ()
    stacks: tuple[Stack, ...] = ()
    stacks_error: str = ""
    """Why there are no stacks."""

    @property
    def main(self) -> Thread:
        """The main thread."""
        return next((thread for thread in self.threads if thread.tid == self.pid), Thread(tid=self.pid))

    @property
    def is_python(self) -> bool:
        """True if it runs Python, by its stacks or its names."""
        return bool(self.frames) or any("python" in word for word in (self.program, self.name, *self.command[:1]))

    @property
    def sample(self) -> str:
        """The index of the sample that the main thread makes."""
        return next((stack.sample for stack in self.stacks if stack.tid == self.pid), "")

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The Python lines of the main thread."""
        return next((stack.frames for stack in self.stacks if stack.tid == self.pid), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All processes of a job at one moment, the job's first process first."""

    at_s: float
    processes: tuple[Process, ...]

    def find(self, pid: int) -> Process | None:
        """Return a process, or None when it was not there."""
        return next((process for process in self.processes if process.pid == pid), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """The memory of a process's group that is closest to its limit."""

    limit_nbytes: int = 0
    """0: there is no limit."""
    used_nbytes: int = 0
    """Without the page cache, which is evicted when memory is needed."""
    oom_kills: int = 0
    """Processes of the group that the kernel killed because memory ran out, since the group exists."""
    new_oom_kills: int = 0
    """Those killed while the job was watched."""
    waits: bool = False
    """True if the group is full, and its processes wait for memory instead of being killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine as the job sees it."""

    shm_nbytes: int = 0
    shm_free_nbytes: int = 0
    shm_failed: int = 0
    """Number of empty shared memory files: torch leaves them behind when there is no room."""
    group: GroupMemory = dataclasses.field(default_factory=GroupMemory)
    """Of the control groups of the job's first process."""
    last_error: str = ""
    """The last error printed by a thread that sends batches, if the job's stderr is a file."""
    is_shm_exhausted: bool = False
    """True if that error says that shared memory is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was observed of a job over a few seconds."""

    root: int
    snapshots: tuple[Snapshot, ...]
    machine: Machine = Machine()
    still_s: float = 0.0
    """How long the job had been stalled before, if it was watched."""
    version: int = VERSION


def to_values(seen: Observation) -> dict[str, Any]:
    """Return an observation as JSON values."""
    return dataclasses.asdict(seen)


def from_values(values: Any) -> Observation:
    """Return the observation that ``to_values`` was given; raise ValueError for anything else."""
    try:
        if (version := values["version"]) != VERSION:
            raise ValueError(f"unsupported version: expected {VERSION}, got {forms.shown(version)}")
        seen: Observation = _made(Observation, values)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a recorded job ({type(error).__name__}: {error!s:.300})") from error
    if not seen.snapshots or not all(snapshot.processes for snapshot in seen.snapshots):
        raise ValueError("the recording has no processes")
    return seen


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _made(kind: Any, value: Any) -> Any:
    """Return a value of this type: dataclasses are made from dicts, and tuples from lists."""
    if dataclasses.is_dataclass(kind):
        known = _types(typing.cast(type, kind))
        return kind(**{name: _made(known[name], part) for name, part in value.items()})  # type: ignore[operator]
    if isinstance(kind, enum.EnumType):
        return kind(value)
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):  # a text has elements, too
            raise TypeError(f"expected a list, got {forms.shown(value)}")
        return tuple(_made(of, part) for part in value)
    allowed = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if type(value) is int and float in allowed:
        value = float(value)
    is_flag = isinstance(value, bool) and bool not in allowed
    is_huge = type(value) is int and abs(value) >= _MAX_INTEGER
    if is_flag or is_huge or not isinstance(value, allowed) or (type(value) is float and math.isnan(value)):
        raise TypeError(f"expected {kind}, got {forms.shown(value)}")
    return value
