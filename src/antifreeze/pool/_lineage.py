"""The processes of one template, and the requests queued at it, as known to the supervisor's thread.

    base ──forks──▶ process that has loaded the payload ──forks──▶ process that has imported more ──forks──▶ ...

The last process that is ready forks workers. Modules that workers import while running are imported by a fork of it
(the importer), which then replaces it if it is still safe to fork.

# Invariant: a process that forks workers is never asked to import anything. An import that starts a thread, crashes or
# hangs costs the importer, which has no workers yet: nothing else is disturbed, and workers are forked as before.
# Tried: importing in the process that forks workers. They are its children, so it could not be replaced before the last
# of them had exited, and killing it killed them all.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from antifreeze.forkserver import Spawn, Terminate
from antifreeze.pool._servers import Server
from antifreeze.pool._template import Template

_IMPORT_TIMEOUT_S = 10.0
"""How long requests wait for the importer. Workers would otherwise import the same modules, which takes as long."""


@dataclass(slots=True)
class Request:
    """A request: start a template, fork a worker from it, add modules to it, or terminate a worker."""

    message: Spawn | Terminate | None
    fds: list[int] = field(default_factory=list)
    template: Template | None = None
    imported: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Base:
    """A process that has imported the modules of some payloads, and from which their templates are forked."""

    server: Server
    modules: frozenset[str]
    sources: dict[str, Any]
    is_prepared: bool = False
    unsafe: str = ""
    idle_since_s: float = 0.0

    def has(self, template: Template) -> bool:
        """True if it has imported the modules of a template, from the same files."""
        same = all(template.sources.get(name) == found for name, found in self.sources.items())
        return same and self.modules.issuperset(template.payload.modules)


@dataclass(slots=True, eq=False)
class ForkProcess:
    """A process that has the payload, and how many of the extra modules it has imported or is importing."""

    server: Server
    num_extra: int = 0
    began_s: float = 0.0


@dataclass(slots=True, eq=False)
class Lineage:
    """The supervisor's record of one template while it is in use."""

    template: weakref.ref[Template]
    base: Base | None = None
    processes: list[ForkProcess] = field(default_factory=list)
    """Each is forked from the previous one; the first loads the payload, the last forks workers."""
    importer: ForkProcess | None = None
    waiting: deque[Request] = field(default_factory=deque)
    is_wanted: bool = False
    """Whether its process should start even if no worker is requested yet."""

    @property
    def server(self) -> Server | None:
        """The process that loads the payload or forks workers, if any."""
        return self.processes[-1].server if self.processes else None

    @property
    def num_extra(self) -> int:
        """Number of extra modules imported by the process that forks workers."""
        return self.processes[-1].num_extra if self.processes else 0

    def to_import(self) -> tuple[str, ...]:
        """Return the extra modules that are not preloaded yet; empty while an importer is running."""
        template = self.template()
        if template is None or self.importer is not None or not self.processes:
            return ()
        return template.extra_modules.names[self.num_extra :]

    def should_wait(self, now_s: float) -> bool:
        """True if requests should wait for the importer."""
        return self.importer is not None and now_s - self.importer.began_s < _IMPORT_TIMEOUT_S

    def is_importer(self, server: Server) -> bool:
        """True if ``server`` is the importer."""
        return self.importer is not None and self.importer.server is server

    def promote_importer(self) -> None:
        """Make the importer the process that forks workers."""
        if self.importer is not None:
            self.processes.append(self.importer)
            self.importer = None

    def forget(self, server: Server) -> bool:
        """Drop a process that is gone; return True if it belonged to this template."""
        if self.is_importer(server):
            self.importer = None
            return True
        before = len(self.processes)
        self.processes = [process for process in self.processes if process.server is not server]
        return len(self.processes) < before

    def all_servers(self) -> list[Server]:
        """Return all processes, children before their parents."""
        found = [process.server for process in reversed(self.processes)]
        return found if self.importer is None else [self.importer.server, *found]
