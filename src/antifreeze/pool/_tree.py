"""The tree of processes that workers are forked from, as the trainer sees it: fork server, bases, templates.

For each payload there is a ``Template`` (see ``forkserver/_server`` for what the processes do):

    NEW ──started──▶ STARTING ──prepared──▶ READY ──its last process is lost──▶ NEW
                        │──it must not be forked, or was lost twice──▶ DIRECT
                        │──user code raised──▶ FAILED

Requests for workers wait at their template until it is READY (they go to its process), DIRECT (they go to the fork
server, and each worker loads for itself) or FAILED (their pool hears of the error). A template that is READY learns
(see ``_lineage``): what workers import while they work, a fork of its process imports for the next ones.

# Invariant: a process that is lost takes along what was forked from it, and nothing else. Crews hear of their workers
# one by one, as of workers that died by themselves.
# Invariant: what was asked for is looked at in every turn, whatever has happened in between. No event has to be waited
# for that may have come already, so that no request can be forgotten.
# Tried: acting on events alone. A fork server that was killed between two messages left a template waiting for ever.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from antifreeze.core import AntifreezeError, get_logger, seconds
from antifreeze.diagnosis import Cause, Finding, StallLimits
from antifreeze.forkserver import Exited, Preloaded, Prepare, Prepared, Retire, Spawned, Terminate, kill_group
from antifreeze.ipc import Closed
from antifreeze.pool._config import PoolConfig
from antifreeze.pool._failures import never_ready, no_descriptors
from antifreeze.pool._lineage import Base, Grown, Lineage, Request
from antifreeze.pool._messages import lines_of
from antifreeze.pool._servers import Server, ending_descendants, start_server, streams
from antifreeze.pool._template import Phase, Template

logger = get_logger()

_CHECK_INTERVAL_S = 0.5
_MAX_FAILURES = 3
_MAX_LOST = 2
"""How often the process of a template may be lost before workers load for themselves."""
_END_TIMEOUT_S = 2.0
_LINGER_S = seconds(os.environ.get("ANTIFREEZE_FORKSERVER_LINGER_S", ""), 3.0)
"""How long imported modules are kept for the next loader."""


class Supervised(Protocol):
    """What the supervisor looks after."""

    config: PoolConfig

    def on_spawned(self, token: int, pid: int) -> None:
        """Hear that a worker has a process."""
        ...

    def on_exited(self, token: int, code: int | None) -> None:
        """Hear that a worker has ended; None if nobody knows how."""
        ...

    def poll(self) -> None:
        """Look whether everything moves; called every tenth of a second or so."""
        ...

    def on_fatal(self, error: AntifreezeError) -> None:
        """Hear that no worker can be had."""
        ...

    def load_failed(self, token: int, template: Template) -> None:
        """Hear that a worker cannot be had because user code raised while the payload was loaded."""
        ...

    def lost_while_loading(self, template: Template, pid: int, why: Finding) -> None:
        """Hear that the process which loads the payload was lost before it was ready."""
        ...

    def was_prepared(self, template: Template) -> None:
        """Hear that a template was decided on: its process has loaded the payload, or workers will."""
        ...


class Tree:
    """All processes that fork others, and who waits for workers from them. Used by the supervisor's thread alone.

    Args:
        owners: the pools by the tokens of the workers that they have asked for.
        kept: all pools.
        release: called with the number of a template that nobody holds any more, by any thread.
    """

    def __init__(
        self, owners: Mapping[int, Supervised], kept: Iterable[Supervised], release: Callable[[int], None]
    ) -> None:
        self._owners, self._kept, self._release = owners, kept, release
        self._root: Server | None = None
        self._branches: list[Server] = []
        """All other servers, also those that retire; the ones first that others were forked from."""
        self._bases: list[Base] = []
        self._places: dict[int, Lineage] = {}
        self._is_root_wanted = False
        self._failures = 0
        self._why: Finding | None = None
        """What was found of a fork server that did not answer, if that is how the last one was lost."""
        self._checked_s = 0.0

    @property
    def is_needed(self) -> bool:
        """Whether there is a process, or somebody waits for one."""
        waiting = any(place.is_wanted or place.waiting for place in self._places.values())
        return self._root is not None or self._is_root_wanted or waiting

    def servers(self) -> list[Server]:
        """Return all processes that fork others."""
        return [*([] if self._root is None else [self._root]), *self._branches]

    # -- what is asked for -----------------------------------------------------------------------------------------

    def want_root(self) -> None:
        """Start the fork server, for something will be asked of it."""
        self._is_root_wanted = True

    def want(self, template: Template, request: Request) -> None:
        """Start the process of a template, and fork a worker from it if the request says so."""
        place = self._place_of(template)
        place.is_wanted = True
        if request.message is not None:
            place.waiting.append(request)

    def advance(self) -> AntifreezeError | None:
        """Do what can be done for everybody who waits; return why no worker can be had, if that is so."""
        wanted = [p for p in self._places.values() if p.is_wanted or p.waiting or p.to_import()]
        if self._root is None and (wanted or self._is_root_wanted) and (error := self._start_root()) is not None:
            return error
        self._is_root_wanted = False
        for place in wanted:
            if (template := place.template()) is not None:
                self._advance(template, place)
        return None

    def _start_root(self) -> AntifreezeError | None:
        """Start a fork server; return why there can be none."""
        if self._failures >= _MAX_FAILURES:
            return never_ready(_MAX_FAILURES, self._why)
        try:
            self._root = start_server()
        except AntifreezeError as error:
            return error
        except OSError as error:
            return no_descriptors(error)
        return None

    def terminate(self, message: Terminate) -> None:
        """End a worker."""
        for server in self.servers():
            if message.token in server.asked:
                self._tell(server, message)

    def _tell(self, server: Server, message: Any, fds: list[int] | None = None) -> None:
        try:
            server.channel.send_nowait(message, fds)
        except Closed:
            self._lose(server)

    # -- templates -------------------------------------------------------------------------------------------------

    def _place_of(self, template: Template) -> Lineage:
        if template.number not in self._places:
            self._places[template.number] = Lineage(weakref.ref(template))
            weakref.finalize(template, self._release, template.number).atexit = False
        return self._places[template.number]

    def _advance(self, template: Template, place: Lineage) -> None:
        """Do what can be done for a template and for those who wait for workers from it."""
        root = self._root
        if root is None:  # it was lost in this turn; the next one starts another
            return
        try:
            root.preload(template.payload.libraries)
            if template.phase is Phase.NEW:
                self._begin(template, place, root)
            if template.phase is Phase.STARTING and place.server is None:
                self._load(template, place)
            if template.phase is Phase.READY and (names := place.to_import()):
                self._add_modules(template, place, names)
            if template.phase in (Phase.READY, Phase.DIRECT, Phase.FAILED):
                place.is_wanted = False
                if not place.is_waited_for(time.monotonic()):
                    self._serve(template, place, root)
        except Closed:
            self._lose(root)

    def _begin(self, template: Template, place: Lineage, root: Server) -> None:
        """Find a process that has imported what the template needs, or fork one."""
        if template.reason:
            template.phase = Phase.DIRECT
            return
        place.base = next((base for base in self._bases if base.has(template)), None)
        if place.base is None:
            server = root.branch("the process that imports the dataset's modules", "af-modules", streams())
            self._branches.append(server)
            place.base = Base(server, frozenset(template.payload.modules), template.sources)
            self._bases.append(place.base)
            server.num_pending += 1
            # Order: after the branch is made, which fails without descriptors; before it is told anything, for one that
            # could not be forked is lost then. Else the template would wait for a process that nobody starts.
            template.phase = Phase.STARTING
            self._tell(server, Prepare(template.environment, template.payload.modules))
        else:
            template.phase = Phase.STARTING

    def _load(self, template: Template, place: Lineage) -> None:
        """Fork the template's own process and have it load the payload, once the modules are there."""
        base = place.base
        if base is None or not base.is_prepared:
            return
        if base.unsafe:
            template.phase, template.reason = Phase.DIRECT, base.unsafe
            return
        try:
            server = base.server.branch("the template process that loads the dataset", "af-template", streams())
        except Closed:
            self._lose(base.server)
            return
        self._branches.append(server)
        place.processes = [Grown(server)]
        server.num_pending += 1
        self._tell(server, Prepare(template.environment, (), template.payload.layout), template.payload.fds())

    def _add_modules(self, template: Template, place: Lineage, names: tuple[str, ...]) -> None:
        """Fork a process that has the payload and imports what workers have imported by themselves."""
        server = place.server
        if server is None:
            return
        try:
            learner = server.branch("the process that imports what workers have imported", "af-template", streams())
        except Closed:
            self._lose(server)
            return
        except OSError as error:  # too many open files, which is for those to say who need them
            self._stop_learning(place, str(error))
            return
        learner.is_awaited = False
        self._branches.append(learner)
        place.learner = Grown(learner, template.learned.begin(), time.monotonic())
        learner.num_pending += 1
        self._tell(learner, Prepare(template.environment, names))

    def _stop_learning(self, place: Lineage, why: str) -> None:
        """Let workers import for themselves, as before: what they import does harm to a process that forks others."""
        if (template := place.template()) is not None:
            template.learned.give_up(place.num_learned)
        place.learner = None
        logger.info("antifreeze: workers import by themselves what they need beyond the dataset: %s", why)

    def _prepared(self, server: Server, message: Prepared) -> None:
        for base in self._bases:
            if base.server is server:
                base.is_prepared, base.unsafe = True, message.unsafe
        for place in list(self._places.values()):
            template = place.template()
            if place.teaches(server) and message.unsafe:
                self._stop_learning(place, message.unsafe)
                self._tell(server, Retire())
            elif place.teaches(server):
                server.is_awaited = True
                place.grow()
            if place.server is not server or template is None or template.phase is not Phase.STARTING:
                continue
            template.load_s, template.failure, template.reason = message.seconds, message.failure, message.unsafe
            template.phase = Phase.READY
            if message.failure is not None or message.unsafe:
                template.phase = Phase.DIRECT if message.failure is None else Phase.FAILED
                place.processes, place.base = [], None
                self._tell(server, Retire())
            for pool in list(self._kept):
                pool.was_prepared(template)

    def _serve(self, template: Template, place: Lineage, root: Server) -> None:
        """Pass on what was asked of a template."""
        server = root if template.phase is Phase.DIRECT else place.server
        while place.waiting:
            request = place.waiting.popleft()
            message = request.message
            owner = None if message is None else self._owners.get(message.token)
            if owner is None or message is None:
                close_all(request.fds)
            elif template.phase is Phase.FAILED or server is None:
                close_all(request.fds)
                owner.load_failed(message.token, template)
            else:
                try:
                    server.ask(message, request.fds)
                except Closed:
                    self._lose(server)
                    return

    def retire(self, number: int) -> None:
        """End the process of a template that nobody needs, as soon as its last worker has ended."""
        place = self._places.pop(number, None)
        if place is None:
            return
        if place.base is not None:
            place.base.idle_since_s = time.monotonic()
        for request in place.waiting:
            close_all(request.fds)
        for server in place.all_servers():
            self._tell(server, Retire())

    def _retire_bases(self, now_s: float) -> None:
        for base in list(self._bases):
            if base.server.asked or any(place.base is base for place in self._places.values()):
                base.idle_since_s = now_s
            elif base.is_prepared and now_s - base.idle_since_s > _LINGER_S:
                self._bases.remove(base)
                self._tell(base.server, Retire())

    # -- what processes say ----------------------------------------------------------------------------------------

    def receive(self, server: Server) -> None:
        """Take in what a process says."""
        if server.channel.fileno() < 0:  # it was lost a moment ago, with the one that it was forked from
            return
        try:
            server.channel.flush_nowait()
            messages = server.channel.receive_nowait()
        except Closed:
            if server is self._root:
                self._lose(server)
            else:
                server.closed_s = time.monotonic()  # its parent says how it has ended, in a moment
            return
        for message, _ in messages:
            if isinstance(message, Preloaded):
                server.num_pending -= 1
                self._failures = 0
            elif isinstance(message, Prepared):
                server.num_pending -= 1
                self._prepared(server, message)
            elif isinstance(message, Spawned):
                self._spawned(server, message)
            elif isinstance(message, Exited):
                server.asked.pop(message.token, None)
                self._exited(message)

    def _spawned(self, server: Server, message: Spawned) -> None:
        server.asked[message.token] = message.pid
        if (branch := self._branch(message.token)) is not None:
            branch.pid = message.pid
        elif (owner := self._owners.get(message.token)) is not None:
            owner.on_spawned(message.token, message.pid)

    def _exited(self, message: Exited) -> None:
        if (branch := self._branch(message.token)) is not None:
            self._lose(branch, branch.end_of(message.code))
        else:
            self._tell_died(message.token, message.code)

    def _branch(self, token: int) -> Server | None:
        return next((server for server in self._branches if server.token == token), None)

    def _tell_died(self, token: int, code: int | None) -> None:
        owner = self._owners.get(token)
        if owner is not None:
            owner.on_exited(token, code)

    def check(self, limits: Callable[[], StallLimits]) -> None:
        """Look whether every server moves that something was asked of."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        for server in self.servers():
            if server.is_stopped():
                if server.is_awaited:
                    logger.warning("antifreeze: %s was stopped and is replaced", server.name)
                self._lose(server, None if server is self._root else Finding(cause=Cause.STOPPED, evidence_lines=()))
            elif server.closed_s is not None and now_s - server.closed_s > _CHECK_INTERVAL_S:
                self._lose(server)
            elif (finding := server.stall(limits())) is not None:
                self._lose(server, finding)
        self._retire_bases(now_s)

    # -- losses ----------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Forget all that was asked for."""
        self._failures = 0
        self._is_root_wanted = False
        for place in self._places.values():
            place.is_wanted = False
            while place.waiting:
                close_all(place.waiting.popleft().fds)

    def _lose(self, server: Server, why: Finding | None = None) -> None:
        """A server has ended, or is ended now: workers that are still wanted are forked elsewhere."""
        if server is self._root:
            self._lose_root(server, why)
            return
        if server not in self._branches:
            return
        finding = why or Finding(cause=Cause.ORPHANED, evidence_lines=())
        for place in list(self._places.values()):
            template = place.template()
            is_start = place.server is server or self._is_base(place, server)
            if template is not None and template.phase is Phase.STARTING and is_start:
                self._count(template, server, finding)
            if place.teaches(server):
                self._stop_learning(place, f"{server.name} {finding.title}")
        self._cut(server)

    def _count(self, template: Template, server: Server, why: Finding) -> None:
        """Note that the process of a template was lost before it was ready."""
        template.num_lost += 1
        if template.num_lost >= _MAX_LOST:
            template.reason = f"{server.title} was lost {_MAX_LOST} times; the last one {why.title}"
        rest = "each worker loads for itself" if template.reason else "another one is started"
        logger.warning("antifreeze: %s %s; %s%s\n  hint: %s", server.name, why.title, rest, lines_of(why), why.hint)
        for pool in list(self._kept):
            pool.lost_while_loading(template, server.pid, why)

    def _lose_root(self, root: Server, why: Finding | None) -> None:
        self._root = None
        if root.num_pending or why is not None:
            self._failures += 1
            self._why = why
        with ending_descendants(root.pid):
            self._kill(root)
            root.wait_until_gone(_END_TIMEOUT_S)
        for server in list(self._branches):
            self._cut(server)

    def _is_base(self, place: Lineage, server: Server) -> bool:
        return place.base is not None and place.base.server is server and place.server is None

    def _cut(self, server: Server) -> None:
        """End a branch with all that was forked from it, and have those started again that are needed."""
        if server not in self._branches:
            return
        self._branches.remove(server)
        for branch in [branch for branch in self._branches if branch.token in server.asked]:
            self._cut(branch)
        self._bases = [base for base in self._bases if base.server is not server]
        for place in self._places.values():
            if place.base is not None and place.base.server is server:
                place.base = None
            elif not place.forget(server):
                continue
            template = place.template()
            if template is not None and template.phase in (Phase.STARTING, Phase.READY) and place.server is None:
                template.phase = Phase.NEW
        self._kill(server)

    def _kill(self, server: Server) -> None:
        server.kill()
        lost, server.asked = server.asked, {}
        for token, pid in lost.items():
            if pid:
                kill_group(pid)  # with what it had started
            self._tell_died(token, None)


def close_all(fds: list[int]) -> None:
    """Close descriptors that nobody will get."""
    while fds:
        os.close(fds.pop())
