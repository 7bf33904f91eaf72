"""The tree of processes that workers are forked from, as the trainer sees it: fork server, bases, templates.

For each payload there is a ``Template`` (see ``forkserver/_server`` for what the processes do):

    NEW ──started──▶ STARTING ──prepared──▶ READY ──its last process is lost──▶ NEW
                        │──it must not be forked, or was lost twice──▶ DIRECT
                        │──user code raised──▶ FAILED

Requests for workers are queued at their template until it is READY (they go to its process), DIRECT (they go to the
fork server, and each worker loads the payload itself) or FAILED (their pool gets the error). A READY template is
extended (see ``_template``): a fork of its process imports, for the next workers, what workers import while running.

# Invariant: when a process is lost, everything forked from it is killed, and nothing else. Pools are notified of each
# lost worker separately, exactly as for a worker that exited on its own.
# Invariant: pending requests are examined in every turn, whatever happened in between. No step depends on an event that
# may have arrived already, so no request can be forgotten.
# Tried: reacting to events only. A fork server that was killed between two messages left a template waiting forever.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from antifreeze.core import AntifreezeError, get_logger, seconds
from antifreeze.diagnosis import Cause, Finding
from antifreeze.forkserver import Exited, Preloaded, Prepare, Prepared, Retire, Spawn, Spawned, Terminate, kill_group
from antifreeze.ipc import Closed
from antifreeze.pool._failures import lines_of, never_ready, no_descriptors
from antifreeze.pool._servers import Server, ending_descendants, start_server, streams
from antifreeze.pool._template import Base, Lineage, Phase, Template

logger = get_logger()

_CHECK_INTERVAL_S = 0.5
_MAX_FAILURES = 3
_MAX_LOST = 2
"""How often the process of a template may be lost before each worker loads the payload itself."""
_END_TIMEOUT_S = 2.0
_LINGER_S = seconds(os.environ.get("ANTIFREEZE_FORKSERVER_LINGER_S", ""), 3.0)
"""How long a process with imported modules is kept for the next loader."""


class Supervised(Protocol):
    """A pool, as the supervisor sees it; ``Pool`` says what each method does."""

    def on_spawned(self, token: int, pid: int) -> None: ...
    def on_exited(self, token: int, code: int | None) -> None: ...
    def poll(self) -> None: ...
    def on_fatal(self, error: AntifreezeError) -> None: ...
    def on_load_failed(self, token: int, template: Template) -> None: ...
    def on_loading_process_lost(self, template: Template, pid: int, why: Finding) -> None: ...
    def on_prepared(self, template: Template) -> None: ...


class Tree:
    """All processes that fork others, and the pending requests for workers. Used by the supervisor's thread alone.

    ``owners`` are the pools by the tokens of the workers that they requested, ``kept`` are all pools. ``release`` is
    called, in any thread, with the number of a template that is no longer referenced.
    """

    def __init__(
        self, owners: Mapping[int, Supervised], kept: Iterable[Supervised], release: Callable[[int], None]
    ) -> None:
        self._owners, self._kept, self._release = owners, kept, release
        self._root: Server | None = None
        self._branches: list[Server] = []
        """All other servers, retiring ones included; parents precede the servers forked from them."""
        self._bases: list[Base] = []
        self._lineages: dict[int, Lineage] = {}
        self._is_root_wanted = False
        self._failures = 0
        self._why: Finding | None = None
        """Why the last fork server stalled, if that is how it was lost."""
        self._checked_s = 0.0

    @property
    def is_needed(self) -> bool:
        """True if a process exists or is requested."""
        waiting = any(lineage.is_wanted or lineage.waiting for lineage in self._lineages.values())
        return self._root is not None or self._is_root_wanted or waiting

    def servers(self) -> list[Server]:
        """Return all processes that fork others."""
        return [*([] if self._root is None else [self._root]), *self._branches]

    # -- requests -----------------------------------------------------------------------------------------

    def want_root(self) -> None:
        """Start the fork server in advance of the first request."""
        self._is_root_wanted = True

    def want(self, template: Template, request: tuple[Spawn, list[int]] | None = None) -> None:
        """Start the process of a template, and fork a worker from it if one is requested, with its descriptors."""
        if template.number not in self._lineages:
            self._lineages[template.number] = Lineage(weakref.ref(template))
            weakref.finalize(template, self._release, template.number).atexit = False
        lineage = self._lineages[template.number]
        lineage.is_wanted = True
        if request is not None:
            lineage.waiting.append(request)

    def advance(self) -> AntifreezeError | None:
        """Advance all pending requests; return an error if no worker can be spawned."""
        wanted = [p for p in self._lineages.values() if p.is_wanted or p.waiting or p.to_import()]
        if self._root is None and (wanted or self._is_root_wanted) and (error := self._start_root()) is not None:
            return error
        self._is_root_wanted = False
        for lineage in wanted:
            if (template := lineage.template()) is not None:
                self._advance(template, lineage)
        return None

    def _start_root(self) -> AntifreezeError | None:
        """Start a fork server; return an error if that is impossible."""
        if self._failures >= _MAX_FAILURES:
            return never_ready(_MAX_FAILURES, self._why)
        try:
            self._root = start_server()
        except AntifreezeError as error:
            return error
        except OSError as error:
            return no_descriptors(error)
        return None

    def terminate(self, token: int, grace_s: float) -> None:
        """Terminate a worker."""
        for server in self.servers():
            if token in server.asked:
                self._send(server, Terminate(token, grace_s))

    def _send(self, server: Server, message: Any, fds: list[int] | None = None) -> None:
        try:
            server.channel.send_nowait(message, fds)
        except Closed:
            self._lose(server)

    # -- templates -------------------------------------------------------------------------------------------------

    def _advance(self, template: Template, lineage: Lineage) -> None:
        """Advance one template and the requests queued at it."""
        root = self._root
        if root is None:  # it was lost in this turn; the next turn starts another
            return
        try:
            root.preload(template.payload.libraries)
            if template.phase is Phase.NEW:
                self._begin(template, lineage, root)
            if template.phase is Phase.STARTING and lineage.server is None:
                self._load(template, lineage)
            if template.phase is Phase.READY and (names := lineage.to_import()):
                self._add_modules(template, lineage, names)
            if template.phase in (Phase.READY, Phase.DIRECT, Phase.FAILED):
                lineage.is_wanted = False
                if not lineage.should_wait(time.monotonic()):
                    self._serve(template, lineage, root)
        except Closed:
            self._lose(root)

    def _begin(self, template: Template, lineage: Lineage, root: Server) -> None:
        """Find a process that has imported the modules of the template, or fork one."""
        if template.reason:
            template.phase = Phase.DIRECT
            return
        lineage.base = next((base for base in self._bases if base.has(template)), None)
        if lineage.base is None:
            server = root.branch("the process that imports the dataset's modules", "af-modules", streams())
            self._branches.append(server)
            lineage.base = Base(server, frozenset(template.payload.modules), template.sources)
            self._bases.append(lineage.base)
            server.num_pending += 1
            # Order: after the branch is created, which fails if descriptors run out; before anything is sent to it,
            # because a branch that could not be forked is lost at that point. Otherwise the template would wait for a
            # process that is never started.
            template.phase = Phase.STARTING
            self._send(server, Prepare(template.environment, template.payload.modules))
        else:
            template.phase = Phase.STARTING

    def _load(self, template: Template, lineage: Lineage) -> None:
        """Fork the template process, which loads the payload, once the modules are imported."""
        base = lineage.base
        if base is None or base.server.prepared is None:
            return
        if base.server.prepared.unsafe:
            template.phase, template.reason = Phase.DIRECT, base.server.prepared.unsafe
            return
        try:
            server = base.server.branch("the template process that loads the dataset", "af-template", streams())
        except Closed:
            self._lose(base.server)
            return
        self._branches.append(server)
        lineage.processes = [server]
        server.num_pending += 1
        self._send(server, Prepare(template.environment, (), template.payload.layout), template.payload.fds())

    def _add_modules(self, template: Template, lineage: Lineage, names: tuple[str, ...]) -> None:
        """Fork a process that has the payload and imports the modules that workers imported while running."""
        server = lineage.server
        if server is None:
            return
        try:
            importer = server.branch("the process that imports modules used by workers", "af-template", streams())
        except Closed:
            self._lose(server)
            return
        except OSError as error:  # too many open files: reported where descriptors are essential
            self._stop_importing(lineage, str(error))
            return
        importer.is_awaited = False
        self._branches.append(importer)
        importer.num_extra, importer.began_s = template.extra_modules.begin(), time.monotonic()
        lineage.importer = importer
        importer.num_pending += 1
        self._send(importer, Prepare(template.environment, names))

    def _stop_importing(self, lineage: Lineage, why: str) -> None:
        """Stop preloading: these modules are not safe to import in a process that forks others."""
        if (template := lineage.template()) is not None:
            template.extra_modules.give_up(lineage.num_extra)
        lineage.importer = None
        logger.info("antifreeze: modules that workers import while running are not preloaded: %s", why)

    def _prepared(self, server: Server, message: Prepared) -> None:
        server.prepared = message
        for lineage in list(self._lineages.values()):
            template = lineage.template()
            if lineage.importer is server and message.unsafe:
                self._stop_importing(lineage, message.unsafe)
                self._send(server, Retire())
            elif lineage.importer is server:
                server.is_awaited = True
                lineage.promote_importer()
            if lineage.server is not server or template is None or template.phase is not Phase.STARTING:
                continue
            template.load_s, template.failure, template.reason = message.seconds, message.failure, message.unsafe
            template.phase = Phase.READY
            if message.failure is not None or message.unsafe:
                template.phase = Phase.DIRECT if message.failure is None else Phase.FAILED
                lineage.processes, lineage.base = [], None
                self._send(server, Retire())
            for pool in list(self._kept):
                pool.on_prepared(template)

    def _serve(self, template: Template, lineage: Lineage, root: Server) -> None:
        """Forward the requests queued at a template."""
        server = root if template.phase is Phase.DIRECT else lineage.server
        while lineage.waiting:
            message, fds = lineage.waiting.popleft()
            owner = self._owners.get(message.token)
            if owner is None:
                close_all(fds)
            elif template.phase is Phase.FAILED or server is None:
                close_all(fds)
                owner.on_load_failed(message.token, template)
            else:
                try:
                    server.ask(message, fds)
                except Closed:
                    self._lose(server)
                    return

    def retire(self, number: int) -> None:
        """Retire the processes of a template that is no longer used, once their last worker has exited."""
        lineage = self._lineages.pop(number, None)
        if lineage is None:
            return
        if lineage.base is not None:
            lineage.base.idle_since_s = time.monotonic()
        for _, fds in lineage.waiting:
            close_all(fds)
        for server in lineage.all_servers():
            self._send(server, Retire())

    def _retire_bases(self, now_s: float) -> None:
        for base in list(self._bases):
            if base.server.asked or any(lineage.base is base for lineage in self._lineages.values()):
                base.idle_since_s = now_s
            elif base.server.prepared is not None and now_s - base.idle_since_s > _LINGER_S:
                self._bases.remove(base)
                self._send(base.server, Retire())

    # -- messages ----------------------------------------------------------------------------------------

    def receive(self, server: Server) -> None:
        """Process the messages of a server."""
        if server.channel.fileno() < 0:  # it was lost a moment ago, together with its parent
            return
        try:
            server.channel.flush_nowait()
            messages = server.channel.receive_nowait()
        except Closed:
            if server is self._root:
                self._lose(server)
            else:
                server.closed_s = time.monotonic()  # its parent reports the exit code in a moment
            return
        for message, _ in messages:
            if isinstance(message, Preloaded):
                server.num_pending -= 1
                self._failures = 0
            elif isinstance(message, Prepared):
                server.num_pending -= 1
                self._prepared(server, message)
            else:
                self._on_process(server, message)

    def _on_process(self, server: Server, message: Spawned | Exited) -> None:
        """Record that a server has forked a process, or that one it had forked has exited."""
        branch = next((other for other in self._branches if other.token == message.token), None)
        if isinstance(message, Spawned):
            server.asked[message.token] = message.pid
            if branch is not None:
                branch.pid = message.pid
            elif (owner := self._owners.get(message.token)) is not None:
                owner.on_spawned(message.token, message.pid)
            return
        server.asked.pop(message.token, None)
        if branch is not None:
            self._lose(branch, branch.end_of(message.code))
        else:
            self._notify_exited(message.token, message.code)

    def _notify_exited(self, token: int, code: int | None) -> None:
        owner = self._owners.get(token)
        if owner is not None:
            owner.on_exited(token, code)

    def check(self, stall_limit_s: Callable[[], float | None]) -> None:
        """Detect servers that are stopped, gone, or stalled on a request."""
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        for server in self.servers():
            if server.is_stopped():
                if server.is_awaited:
                    logger.warning("antifreeze: %s was stopped and was replaced", server.name)
                self._lose(server, None if server is self._root else Finding(cause=Cause.STOPPED, evidence_lines=()))
            elif server.closed_s is not None and now_s - server.closed_s > _CHECK_INTERVAL_S:
                self._lose(server)
            elif (finding := server.stall(stall_limit_s())) is not None:
                self._lose(server, finding)
        self._retire_bases(now_s)

    # -- lost servers --------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Drop all pending requests."""
        self._failures = 0
        self._is_root_wanted = False
        for lineage in self._lineages.values():
            lineage.is_wanted = False
            while lineage.waiting:
                close_all(lineage.waiting.popleft()[1])

    def _lose(self, server: Server, why: Finding | None = None) -> None:
        """Handle the loss of a server, killing it if needed: workers that are still needed are forked elsewhere."""
        if server is self._root:
            self._lose_root(server, why)
            return
        if server not in self._branches:
            return
        finding = why or Finding(cause=Cause.ORPHANED, evidence_lines=())
        for lineage in list(self._lineages.values()):
            template = lineage.template()
            is_base = lineage.base is not None and lineage.base.server is server and lineage.server is None
            is_start = is_base or lineage.server is server
            if template is not None and template.phase is Phase.STARTING and is_start:
                self._count_loss(template, server, finding)
            if lineage.importer is server:
                self._stop_importing(lineage, f"{server.name} {finding.title}")
        self._cut(server)

    def _count_loss(self, template: Template, server: Server, why: Finding) -> None:
        """Count the loss of a template's process before it was ready."""
        template.num_lost += 1
        if template.num_lost >= _MAX_LOST:
            template.reason = f"{server.title} was lost {_MAX_LOST} times; the last one {why.title}"
        rest = "each worker loads the dataset itself" if template.reason else "starting another one"
        logger.warning("antifreeze: %s %s; %s%s\n  hint: %s", server.name, why.title, rest, lines_of(why), why.hint)
        for pool in list(self._kept):
            pool.on_loading_process_lost(template, server.pid, why)

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

    def _cut(self, server: Server) -> None:
        """Kill a branch and everything forked from it, and reset the templates that need it."""
        if server not in self._branches:
            return
        self._branches.remove(server)
        for branch in [branch for branch in self._branches if branch.token in server.asked]:
            self._cut(branch)
        self._bases = [base for base in self._bases if base.server is not server]
        for lineage in self._lineages.values():
            if lineage.base is not None and lineage.base.server is server:
                lineage.base = None
            elif not lineage.forget(server):
                continue
            template = lineage.template()
            if template is not None and template.phase in (Phase.STARTING, Phase.READY) and lineage.server is None:
                template.phase = Phase.NEW
        self._kill(server)

    def _kill(self, server: Server) -> None:
        server.kill()
        lost, server.asked = server.asked, {}
        for token, pid in lost.items():
            if pid:
                kill_group(pid)  # its subprocesses included
            self._notify_exited(token, None)


def close_all(fds: list[int]) -> None:
    """Close descriptors that are not going to be sent."""
    while fds:
        os.close(fds.pop())
