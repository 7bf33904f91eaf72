"""One thread of the trainer that looks after the fork server, its branches, and all pools, while there are any.

The thread starts the fork server itself and lives as long as it: the kernel ends the fork server, and with it every
process that was forked there, when this thread ends, however that comes about. So nothing has to be ended when the
interpreter exits, and nothing can be left behind when the trainer is killed.
"""

from __future__ import annotations

import atexit
import errno
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from typing import Any

from antifreeze.core import AntifreezeError, get_logger
from antifreeze.diagnosis import StallLimits
from antifreeze.forkserver import Spawn, Terminate
from antifreeze.pool._failures import supervisor_failed
from antifreeze.pool._lineage import Request
from antifreeze.pool._template import Template
from antifreeze.pool._tree import Supervised, Tree, close_all
from antifreeze.pool._wakeup import WakeupPipe

logger = get_logger()

TEND_S = 0.2
_MAX_FAULTS = 3
_EXIT_TIMEOUT_S = 5.0
_FORGIVE_S = 10.0
"""How long the thread must do well until earlier faults are forgotten: some come in every other turn only."""


class Supervisor:
    """The thread, and what it knows. What any thread may call comes first; everything else runs in that thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._requests: deque[Request] = deque()
        self._released: deque[int] = deque()
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._ending: deque[Supervised] = deque()
        self._tree = Tree(self._owners, self._kept, self.release)
        self._faults, self._faulted_s = 0, 0.0
        self._awake, self._resting = threading.Event(), threading.Event()
        self._wakeup = WakeupPipe(is_open=False)

    # -- any thread ------------------------------------------------------------------------------------------------

    def keep(self, pool: Supervised) -> None:
        """Look after a pool until it is dropped or nobody holds it. The fork server starts at once."""
        with self._lock:
            self._kept.add(pool)
            self._requests.append(Request(None))
            self._have_thread()
        self.wake()

    def drop(self, pool: Supervised) -> None:
        """Look after it no more."""
        self._kept.discard(pool)

    def end(self, pool: Supervised) -> None:
        """Have a pool closed by the thread. Takes no lock: the collector may call this anywhere."""
        self._ending.append(pool)
        self.wake()

    def start(self, template: Template) -> None:
        """Start the process of a template in the background."""
        with self._lock:
            self._requests.append(Request(None, template=template))
            self._have_thread()
        self.wake()

    def spawn(self, pool: Supervised, message: Spawn, fds: list[int], template: Template) -> None:
        """Ask for a worker; the pool hears of it."""
        with self._lock:
            self._owners[message.token] = pool
            self._requests.append(Request(message, fds, template))
            self._have_thread()
        self.wake()

    def add_modules(self, template: Template, names: tuple[str, ...]) -> None:
        """Have a template import modules in the background: a worker has, and the next ones shall not have to."""
        with self._lock:
            self._requests.append(Request(None, template=template, imported=names))
            self._have_thread()
        self.wake()

    def terminate(self, token: int, grace_s: float) -> None:
        """Ask for a worker's end. Takes no lock: the collector may call this anywhere."""
        self._requests.append(Request(Terminate(token, grace_s)))
        self.wake()

    def release(self, number: int) -> None:
        """End the process of a template that nobody holds. Takes no lock: the collector may call this anywhere."""
        self._released.append(number)
        self.wake()

    def wake(self) -> None:
        """Have the thread look now."""
        self._wakeup.notify()

    def rest(self) -> None:
        """Have the thread do nothing from now on, unless somebody needs it. Workers live on."""
        self._resting.clear()  # Order: first, or what the thread says at once would be lost
        self._awake.clear()
        if self._thread is not None:
            self.wake()
            self._resting.wait(_EXIT_TIMEOUT_S)

    def end_unready_root(self) -> None:
        """Kill a fork server that has not come up: stuck in its start, it would not see that this process has ended."""
        root = next(iter(self._tree.servers()), None)
        if root is not None and root.num_pending and not root.asked:
            root.kill()

    def forget(self) -> None:
        """Let go of what belongs to the parent, in a process that was forked: its thread is not here."""
        self._wakeup.close()
        for server in self._tree.servers():
            server.close()

    def _have_thread(self) -> None:
        self._wakeup.open()
        self._awake.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="antifreeze-supervisor", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:  # the limit on processes counts threads
                self._thread = None
                raise OSError(errno.EAGAIN, f"the worker supervisor could not be started: {error}") from error

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            if not self._awake.is_set():
                self._resting.set()
                self._awake.wait(TEND_S)
                continue
            try:
                self._look()
                with self._lock:
                    if not (self._tree.is_needed or self._kept or self._requests or self._ending):
                        self._thread = None
                        break
                if time.monotonic() - self._faulted_s > _FORGIVE_S:
                    self._faults = 0
            except Exception as error:
                # border: whatever fails here must not end the thread, for every worker would end with it
                logger.exception("antifreeze: the worker supervisor failed, and continues")
                self._faults += 1
                self._faulted_s = time.monotonic()
                if self._faults >= _MAX_FAULTS:
                    self._doom(supervisor_failed(error))
                time.sleep(TEND_S)
        self._resting.set()  # Order: after the end was noted. Who saw the thread before waits for this

    def _look(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup.fileno(), select.POLLIN)
        for server in self._tree.servers():
            if server.closed_s is None:
                poll.register(server.channel.fileno(), select.POLLIN)
        poll.poll(TEND_S * 1000)
        self._wakeup.drain()
        for server in self._tree.servers():
            self._tree.receive(server)
        self._tree.check(self._limits)
        self._act()
        for pool in [*self._kept, *(self._ending.popleft() for _ in range(len(self._ending)))]:
            pool.poll()

    def _limits(self) -> StallLimits:
        """Return the shortest limits that a user has set."""
        found = [pool.config.limits for pool in list(self._kept)]
        return min(found, key=lambda limits: limits.stall_limit_s or math.inf, default=StallLimits())

    def _act(self) -> None:
        while self._released:
            self._tree.retire(self._released.popleft())
        while self._requests:
            request = self._requests.popleft()
            if isinstance(request.message, Terminate):
                self._tree.terminate(request.message)
            elif request.template is None:
                self._tree.want_root()
            elif request.imported:
                request.template.learned.add(request.imported)
            else:
                self._tree.want(request.template, request)
        if (error := self._tree.advance()) is not None:
            self._doom(error)

    def _doom(self, error: AntifreezeError) -> None:
        """Tell all pools that no worker can be had."""
        while self._requests:
            close_all(self._requests.popleft().fds)
        self._tree.give_up()
        for pool in list(self._kept):
            pool.on_fatal(error)


_supervisor = Supervisor()


def the_supervisor() -> Supervisor:
    """Return the supervisor of this process."""
    return _supervisor


def _in_child() -> None:
    """Forget everything that belongs to the parent: its thread is not here, and its fork server is not ours."""
    global _supervisor
    before, _supervisor = _supervisor, Supervisor()
    before.forget()


def _at_exit() -> None:
    # A daemon that comes back from native code while the interpreter ends can bring the process down with it: to let go
    # of a tensor is enough.
    _supervisor.rest()
    _supervisor.end_unready_root()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
