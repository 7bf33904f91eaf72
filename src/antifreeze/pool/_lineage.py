"""Which processes a template has, and who waits for workers from them, as the supervisor's thread knows it.

    base ──forks──▶ process that has loaded the payload ──forks──▶ process that has imported more ──forks──▶ ...

The last process that is ready forks workers. What workers import while they work, a fork of it imports (the learner),
and takes its place once that was done and it may be forked.

# Invariant: a process that forks workers is told to import nothing. An import that starts a thread, crashes or never
# ends costs the learner, which has no workers yet: nobody else is disturbed, and workers are forked as before.
# Tried: importing in the process that forks workers. They are its children, so that it could not be replaced before the
# last of them had ended, and one that had to be killed took them along.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from antifreeze.forkserver import Spawn, Terminate
from antifreeze.pool._servers import Server
from antifreeze.pool._template import Template

_WAIT_S = 10.0
"""How long workers wait for what they would have to import by themselves otherwise, which takes as long."""


@dataclass(slots=True)
class Request:
    """Something to do: start a template, fork a worker from it, have it learn, or end a worker."""

    message: Spawn | Terminate | None
    fds: list[int] = field(default_factory=list)
    template: Template | None = None
    imported: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Base:
    """A process that has imported the modules of some payloads, and of which their templates are forked."""

    server: Server
    modules: frozenset[str]
    sources: dict[str, Any]
    is_prepared: bool = False
    unsafe: str = ""
    idle_since_s: float = 0.0

    def has(self, template: Template) -> bool:
        """True if it has imported what a template needs, from the same files."""
        same = all(template.sources.get(name) == found for name, found in self.sources.items())
        return same and self.modules.issuperset(template.payload.modules)


@dataclass(slots=True, eq=False)
class Grown:
    """A process that has the payload, and how many of the learned modules it imports or has imported."""

    server: Server
    num_learned: int = 0
    began_s: float = 0.0


@dataclass(slots=True, eq=False)
class Lineage:
    """What the thread knows of one template, and keeps while it is used."""

    template: weakref.ref[Template]
    base: Base | None = None
    processes: list[Grown] = field(default_factory=list)
    """Each forked from the one before; the first loads the payload, and the last one forks workers."""
    learner: Grown | None = None
    waiting: deque[Request] = field(default_factory=deque)
    is_wanted: bool = False
    """Whether its process shall start, also if nobody waits for a worker yet."""

    @property
    def server(self) -> Server | None:
        """The process that loads the payload or forks workers, if there is one."""
        return self.processes[-1].server if self.processes else None

    @property
    def num_learned(self) -> int:
        """How many of the learned modules the process has that forks workers."""
        return self.processes[-1].num_learned if self.processes else 0

    def to_import(self) -> tuple[str, ...]:
        """Return the learned modules that workers still have to import by themselves, unless a process is at it."""
        template = self.template()
        if template is None or self.learner is not None or not self.processes:
            return ()
        return template.learned.names[self.num_learned :]

    def is_waited_for(self, now_s: float) -> bool:
        """True if workers should wait for the learner."""
        return self.learner is not None and now_s - self.learner.began_s < _WAIT_S

    def teaches(self, server: Server) -> bool:
        """True if this process is the learner."""
        return self.learner is not None and self.learner.server is server

    def grow(self) -> None:
        """Have the learner fork workers from now on."""
        if self.learner is not None:
            self.processes.append(self.learner)
            self.learner = None

    def forget(self, server: Server) -> bool:
        """Let go of a process that is gone; return whether it was one of these."""
        if self.teaches(server):
            self.learner = None
            return True
        before = len(self.processes)
        self.processes = [process for process in self.processes if process.server is not server]
        return len(self.processes) < before

    def all_servers(self) -> list[Server]:
        """Return all processes, the ones first that were forked from others."""
        found = [process.server for process in reversed(self.processes)]
        return found if self.learner is None else [self.learner.server, *found]
