"""What was seen of a job: plain values, which can be kept in a file and judged elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from antifreeze.core import forms
from antifreeze.diagnosis import Frame
from antifreeze.doctor._cgroup import GroupMemory

_BEYOND = 1 << 63
VERSION = 1
"""Of the form in which it is kept."""


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
    """What the descriptor stands for."""
    path: str = ""
    """The file that its call is about, where that shows."""
    mount: str = ""
    """Where that file lies: ``/data (nfs4, server:/export)``."""
    sectors: int = 0
    """How much the disk that it lies on has read and written so far, for whomever; 0 where nobody tells."""
    wakes: int = 0
    """How often it has begun to wait."""
    cpu_s: float = 0.0
    idle_s: float | None = None
    """Seconds since it last ran, where the kernel tells."""
    limit_s: float | None = None
    """How much longer its call waits at most: infinite, if it has no limit. None: not known."""
    shared: bool = False
    """True if the lock that it waits for can be released by another process."""
    owner: int = 0
    """The thread that holds the lock, where the lock tells."""
    libraries: tuple[str, ...] = ()
    """Native libraries that it has called into, innermost first."""

    @property
    def starves(self) -> bool:
        """True if it waits for memory in a control group that is full, and in which the kernel may not kill."""
        return "mem_cgroup_oom" in self.wchan

    @property
    def gives_birth(self) -> bool:
        """True if it waits for a process that it has started to begin its program."""
        return self.state == "D" and self.syscall in ("vfork", "clone", "clone3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The Python lines that a thread stands on, innermost first."""

    tid: int
    name: str = ""
    frames: tuple[Frame, ...] = ()
    holds_gil: bool = False
    sample: str = ""
    """The index of the sample that torch asks the dataset for, as far as it can be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a job at one moment."""

    pid: int
    parent: int = 0
    name: str = ""
    program: str = ""
    """The file that it runs, such as ``python3.11``; a process may give itself another name."""
    command: tuple[str, ...] = ()
    """How it was started, without what looks like a secret."""
    folder: str = ""
    """Where it runs: file names in its stacks may be relative to it."""
    state: str = ""
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    rss_nbytes: int = 0
    files: int = 0
    most_files: int = 0
    ignores_children: bool = False
    """True if it ignores SIGCHLD, so that it is not told of the end of its children."""
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
class Machine:
    """What the job has to live with."""

    cores: int = 0
    shm_nbytes: int = 0
    shm_free_nbytes: int = 0
    shm_failed: int = 0
    """How many pieces of shared memory lie there empty: torch leaves their names behind when there was no room."""
    memory_nbytes: int = 0
    memory_free_nbytes: int = 0
    oom_kills: int = 0
    group: GroupMemory = dataclasses.field(default_factory=GroupMemory)
    """Of the control groups that the job's first process is in."""
    last_error: str = ""
    """The last error that was printed by a thread which sends batches, if the job's stderr is a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen of a job over some seconds."""

    root: int
    snapshots: tuple[Snapshot, ...]
    machine: Machine = Machine()
    still_s: float = 0.0
    """How long the job had stood still before, when somebody has watched it."""
    version: int = VERSION


def to_values(seen: Observation) -> dict[str, Any]:
    """Return it as values that JSON knows."""
    return dataclasses.asdict(seen)


def from_values(values: Any) -> Observation:
    """Return what ``to_values`` was given. Anything else raises ValueError."""
    try:
        if (version := values["version"]) != VERSION:
            raise ValueError(f"it is of version {forms.shown(version)}, and this program reads version {VERSION}")
        seen: Observation = _made(Observation, values)
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it does not hold what was seen of a job ({type(error).__name__}: {error!s:.300})") from error
    if not seen.snapshots or not all(snapshot.processes for snapshot in seen.snapshots):
        raise ValueError("nothing was seen")
    return seen


@functools.cache
def _types(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _made(kind: Any, value: Any) -> Any:
    """Return a value of this type: records are made of dicts, and tuples of lists."""
    if dataclasses.is_dataclass(kind):
        known = _types(typing.cast(type, kind))
        return kind(**{name: _made(known[name], part) for name, part in value.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        if not isinstance(value, list | tuple):  # a text has parts, too
            raise TypeError(f"{forms.shown(value)} is not a list")
        return tuple(_made(of, part) for part in value)
    allowed = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if type(value) is int and float in allowed:
        value = float(value)
    is_flag = isinstance(value, bool) and bool not in allowed
    is_huge = type(value) is int and abs(value) >= _BEYOND
    if is_flag or is_huge or not isinstance(value, allowed) or (type(value) is float and math.isnan(value)):
        raise TypeError(f"{forms.shown(value)} is not {kind}")
    return value
