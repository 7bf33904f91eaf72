"""What a loader's workers are forked from: its payload, and the process that has loaded it."""

from __future__ import annotations

import enum
import functools
import itertools
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from antifreeze.payload import (
    Patch,
    Payload,
    dump_replacement,
    find_replacements,
    gather_settings,
    make_payload,
    own_sources,
    packed,
    registered,
)
from antifreeze.worker import Environment

_numbers = itertools.count(1)
_MAX_ROUNDS = 8
"""How often names may be added: each round is a process that stays as long as the template."""


class Phase(enum.Enum):
    """Where a template is: NEW -> STARTING -> READY, DIRECT or FAILED; READY -> NEW when its process is lost."""

    NEW = "it has no process"
    STARTING = "a process imports and loads"
    READY = "a process has loaded the payload, and forks workers"
    DIRECT = "workers are forked from the fork server, and each loads for itself"
    FAILED = "user code raised an error while the payload was loaded"


class Learned:
    """Modules that workers have imported while they worked, and that their template imports for the next ones.

    Names are added until an import does harm. Then those that no process has imported yet are forgotten, for good.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._num_begun = self._rounds = 0

    def add(self, names: Iterable[str]) -> None:
        """Note what a worker has imported, in its order."""
        if self._rounds < _MAX_ROUNDS:
            self.names = tuple(dict.fromkeys((*self.names, *names)))

    def begin(self) -> int:
        """Return how many there are, for a process that now imports them."""
        if len(self.names) > self._num_begun:
            self._num_begun = len(self.names)
            self._rounds += 1
        return len(self.names)

    def give_up(self, num_harmless: int) -> None:
        """Forget all but the first ones, and add no more."""
        self.names, self._rounds = self.names[:num_harmless], _MAX_ROUNDS


class Template:
    """A payload, and how workers get it. All but what it was made with is changed by the supervisor's thread."""

    def __init__(self, payload: Payload, sources: dict[str, Any], environment: Environment) -> None:
        self.payload, self.sources, self.environment = payload, sources, environment
        self.number, self.pid = next(_numbers), os.getpid()
        self.phase = Phase.DIRECT if sys.platform != "linux" else Phase.NEW
        self.reason = payload.per_worker_reason
        if sys.platform != "linux":
            self.reason = "template processes are used on Linux only"
        """Why workers load for themselves, if they do."""
        self.failure: Any = None
        self.num_lost = 0
        """How often its process was lost before it was ready."""
        self.load_s = 0.0
        self.learned = Learned()

    def to_learn(self, names: Iterable[str], by_value: Collection[str]) -> tuple[str, ...]:
        """Return which of the modules that a worker has imported its template shall import: those that are here too.

        A fork of this process would have these, and no others. The template is not used after one of them was edited.
        """
        known = tuple(name for name in names if sys.modules.get(name) is not None and name not in by_value)
        self.sources = own_sources(by_value, known) | self.sources
        return known

    def is_for(self, payload: Payload, sources: dict[str, Any]) -> bool:
        """True if workers of this payload, with these source files, may come from here."""
        is_current = all(sources.get(name) == found for name, found in self.sources.items())
        return payload is self.payload and is_current and self.pid == os.getpid() and self.phase is not Phase.FAILED


class Templates:
    """The templates of one loader: the same one in every epoch, as long as the payload stays the same."""

    def __init__(self) -> None:
        self.by_value: set[str] = set()
        """Modules that exist in this process only: a notebook's, or those found by a path that is gone."""
        self._template: Template | None = None

    @property
    def current(self) -> Template | None:
        """The template of the last epoch."""
        return self._template

    @property
    def reason(self) -> str:
        """Why workers load for themselves; nothing if they do not."""
        return "" if self._template is None else self._template.reason

    def of(self, program: Any) -> tuple[Template, Environment]:
        """Return where workers of a program come from, and what they take over from this process."""
        before, replacements = self._template, find_replacements(self.by_value)
        replaced = {each.place for each in replacements}
        payload = make_payload(program, self.by_value, None if before is None else before.payload, replaced)
        with registered(self.by_value):
            patches = packed(replacements, functools.partial(dump_replacement, replaced=replaced))
        sources, environment = own_sources(self.by_value), environment_of(self.by_value, patches)
        if before is None or not before.is_for(payload, sources):
            self._template = Template(payload, sources, environment)
        assert self._template is not None  # noqa: S101  it was set
        return self._template, environment


def environment_of(by_value: set[str], patches: tuple[Patch, ...]) -> Environment:
    """Return what a worker takes over from this process, as it is now."""
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
