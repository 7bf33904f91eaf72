"""What a loader's workers are forked from: its payload, the template process that has loaded it, and forks of that.

    base ──forks──▶ process that has loaded the payload ──forks──▶ process that has imported more ──forks──▶ ...

The last process that is ready forks workers. Modules that workers import while running are imported by a fork of it
(the importer), which then replaces it if it is still safe to fork.

# Invariant: a process that forks workers is never asked to import anything. An import that starts a thread, crashes or
# hangs costs the importer, which has no workers yet: nothing else is disturbed, and workers are forked as before.
# Tried: importing in the process that forks workers. They are its children, so it could not be replaced before the last
# of them had exited, and killing it killed them all.
"""

from __future__ import annotations

import enum
import itertools
import os
import sys
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antifreeze.core import get_logger
from antifreeze.forkserver import Spawn
from antifreeze.payload import Patch, Payload, find_patches, gather_settings, make_payload, own_sources
from antifreeze.pool._servers import Server
from antifreeze.worker import Environment

logger = get_logger()

_numbers = itertools.count(1)
_MAX_ROUNDS = 8
"""How often modules may be added: each round forks a process that stays as long as the template."""
_IMPORT_TIMEOUT_S = 10.0
"""How long requests wait for the importer. Workers would otherwise import the same modules, which takes as long."""


class Phase(enum.Enum):
    """State of a template: NEW -> STARTING -> READY, DIRECT or FAILED; READY -> NEW when its process is lost."""

    NEW = "it has no process"
    STARTING = "a process imports and loads"
    READY = "a process has loaded the payload, and forks workers"
    DIRECT = "workers are forked from the fork server, and each loads the payload itself"
    FAILED = "user code raised an error while the payload was loaded"


class ExtraModules:
    """Modules that workers imported while running, and that the template imports for the next workers.

    Modules are added until an import causes a problem. Then those that no process has imported yet are dropped, and no
    more are added.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._num_begun = self._rounds = 0

    def add(self, names: Iterable[str]) -> None:
        """Add modules that a worker imported, in import order."""
        if self._rounds < _MAX_ROUNDS:
            self.names = tuple(dict.fromkeys((*self.names, *names)))

    def begin(self) -> int:
        """Start a round: return the number of modules that a new process is about to import."""
        if len(self.names) > self._num_begun:
            self._num_begun = len(self.names)
            self._rounds += 1
        return len(self.names)

    def give_up(self, num_harmless: int) -> None:
        """Keep only the first ``num_harmless`` modules, and add no more."""
        self.names, self._rounds = self.names[:num_harmless], _MAX_ROUNDS


class Template:
    """A payload, and how workers get it. Only the supervisor's thread changes it after construction."""

    def __init__(self, payload: Payload, sources: dict[str, Any], environment: Environment) -> None:
        self.payload, self.sources, self.environment = payload, sources, environment
        self.number, self.pid = next(_numbers), os.getpid()
        self.phase = Phase.NEW
        self.reason = payload.per_worker_reason
        if sys.platform != "linux":
            self.reason = "template processes are used on Linux only"
        """Why each worker loads the payload itself; "" if the template process does."""
        self.failure: Any = None
        self.num_lost = 0
        """Number of times its process was lost before it was ready."""
        self.load_s = 0.0
        self.extra_modules = ExtraModules()

    def select_extra_modules(self, names: Iterable[str], by_value: Collection[str]) -> tuple[str, ...]:
        """Return which of a worker's imported modules the template should import: those that this process has, too.

        A fork of this process would have exactly these. A template whose modules were edited since is not reused.
        """
        known = tuple(name for name in names if sys.modules.get(name) is not None and name not in by_value)
        self.sources = own_sources(by_value, known) | self.sources
        return known

    def is_for(self, payload: Payload, sources: dict[str, Any]) -> bool:
        """True if workers with this payload and these source files can be forked from this template."""
        is_current = all(sources.get(name) == found for name, found in self.sources.items())
        return payload is self.payload and is_current and self.pid == os.getpid() and self.phase is not Phase.FAILED


class Templates:
    """The templates of one loader. A template is reused as long as the payload does not change."""

    def __init__(self) -> None:
        self.by_value: set[str] = set()
        """Modules that exist only in this process: those of a notebook, or imported from a path that is gone."""
        self.carried: tuple[str, ...] = ()
        """What workers get besides plain data: handles opened again, replaced functions, settings of modules."""
        self.current: Template | None = None
        """The template of the last epoch."""

    def of(self, program: Any) -> tuple[Template, Environment]:
        """Return the template for a program, and the environment its workers take over from this process."""
        before = self.current
        replaced, patches = find_patches(self.by_value)
        payload = make_payload(program, self.by_value, None if before is None else before.payload, replaced)
        sources, environment = own_sources(self.by_value), environment_of(self.by_value, patches)
        carried = (*(f"rebuilt {name}" for name in payload.rebuilt), *environment.settings.summary())
        if carried != self.carried:
            self.carried = carried
            logger.debug("antifreeze: carried to workers: %s", "; ".join(carried))
        if before is not None and before.is_for(payload, sources):
            return before, environment
        self.current = Template(payload, sources, environment)
        return self.current, environment


def environment_of(by_value: set[str], patches: tuple[Patch, ...]) -> Environment:
    """Return the current environment of this process, which a worker takes over."""
    try:
        cwd = str(Path.cwd())
    except OSError:  # it was removed
        cwd = "/"
    return Environment(
        owner_pid=os.getpid(),
        sys_path=[os.fspath(folder) for folder in sys.path],
        argv=list(sys.argv),
        cwd=cwd,
        environ=dict(os.environ),
        settings=gather_settings(by_value)._replace(patches=patches),
    )


# -- as the supervisor's thread knows it --------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Base:
    """A process that has imported the modules of some payloads, and from which their templates are forked."""

    server: Server
    modules: frozenset[str]
    sources: dict[str, Any]
    idle_since_s: float = 0.0

    def has(self, template: Template) -> bool:
        """True if it has imported the modules of a template, from the same files."""
        same = all(template.sources.get(name) == found for name, found in self.sources.items())
        return same and self.modules.issuperset(template.payload.modules)


@dataclass(slots=True, eq=False)
class Lineage:
    """The supervisor's record of one template while it is in use."""

    template: weakref.ref[Template]
    base: Base | None = None
    processes: list[Server] = field(default_factory=list)
    """Each is forked from the previous one; the first loads the payload, the last forks workers."""
    importer: Server | None = None
    waiting: deque[tuple[Spawn, list[int]]] = field(default_factory=deque)
    """Workers that were requested, each with the descriptors to send along."""
    is_wanted: bool = False
    """Whether its process should start even if no worker is requested yet."""

    @property
    def server(self) -> Server | None:
        """The process that loads the payload or forks workers, if any."""
        return self.processes[-1] if self.processes else None

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

    def promote_importer(self) -> None:
        """Make the importer the process that forks workers."""
        if self.importer is not None:
            self.processes.append(self.importer)
            self.importer = None

    def forget(self, server: Server) -> bool:
        """Drop a process that is gone; return True if it belonged to this template."""
        if self.importer is server:
            self.importer = None
            return True
        before = len(self.processes)
        self.processes = [process for process in self.processes if process is not server]
        return len(self.processes) < before

    def all_servers(self) -> list[Server]:
        """Return all processes, children before their parents."""
        return [*([] if self.importer is None else [self.importer]), *reversed(self.processes)]
