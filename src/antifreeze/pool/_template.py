"""What a loader's workers are forked from: its payload, and the template process that has loaded it."""

from __future__ import annotations

import enum
import itertools
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from antifreeze.core import get_logger
from antifreeze.payload import Patch, Payload, find_patches, gather_settings, make_payload, own_sources
from antifreeze.worker import Environment

logger = get_logger()

_numbers = itertools.count(1)
_MAX_ROUNDS = 8
"""How often modules may be added: each round forks a process that stays as long as the template."""


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
        self.phase = Phase.DIRECT if sys.platform != "linux" else Phase.NEW
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
        self._template: Template | None = None

    @property
    def current(self) -> Template | None:
        """The template of the last epoch."""
        return self._template

    @property
    def reason(self) -> str:
        """Why each worker loads the payload itself; "" if the template process does."""
        return "" if self._template is None else self._template.reason

    def of(self, program: Any) -> tuple[Template, Environment]:
        """Return the template for a program, and the environment its workers take over from this process."""
        before = self._template
        replaced, patches = find_patches(self.by_value)
        payload = make_payload(program, self.by_value, None if before is None else before.payload, replaced)
        sources, environment = own_sources(self.by_value), environment_of(self.by_value, patches)
        carried = (*(f"rebuilt {name}" for name in payload.rebuilt), *environment.settings.summary())
        if carried != self.carried:
            self.carried = carried
            logger.debug("antifreeze: carried to workers: %s", "; ".join(carried))
        if before is None or not before.is_for(payload, sources):
            self._template = Template(payload, sources, environment)
        assert self._template is not None  # noqa: S101  it was set
        return self._template, environment


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
