"""One thread of the trainer that keeps the nursery and looks after all crews, while there are any.

The thread starts the nursery itself and lives as long as it: the kernel kills the nursery, and with it every worker,
when this thread ends, however that comes about. So nothing has to be ended when the interpreter exits, and nothing
can be left behind when the trainer is killed.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import select
import threading
import time
import weakref
from collections import deque
from typing import Any, NamedTuple, Protocol

from antifreeze.core import AntifreezeError
from antifreeze.crew._bell import Bell
from antifreeze.crew._failures import keeper_failed, never_ready, no_descriptors
from antifreeze.crew._nursery import Nursery, start_nursery
from antifreeze.crew._terms import Terms
from antifreeze.nursery import Bear, Born, Bury, Died, Hello, kill_group
from antifreeze.supervise import Finding, Limits
from antifreeze.transport import Closed

logger = logging.getLogger("antifreeze")

TEND_S = 0.2
_CHECK_S = 0.5
_TRIES = 3
_EXIT_S = 5.0


class Kept(Protocol):
    """What the keeper looks after."""

    terms: Terms

    def born(self, token: int, pid: int) -> None:
        """Hear that a worker has a process."""
        ...

    def died(self, token: int, code: int | None) -> None:
        """Hear that a worker has ended; None if nobody knows how."""
        ...

    def tend(self) -> None:
        """Look whether everything moves; called every tenth of a second or so."""
        ...

    def doomed(self, error: AntifreezeError) -> None:
        """Hear that no worker can be had."""
        ...


class _Request(NamedTuple):
    """Something to tell the nursery."""

    message: Bear | Bury
    fds: list[int]
    modules: tuple[str, ...] = ()


class Keeper:
    """The thread, and what it knows. Everything in it but ``ask``, ``keep`` and ``drop`` runs in that thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._requests: deque[_Request] = deque()
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._ending: deque[Kept] = deque()
        self._asked: dict[int, int] = {}
        """Workers that the nursery was asked for and that have not ended, with their processes; 0 if not yet born."""
        self._nursery: Nursery | None = None
        self._failures = self._faults = 0
        self._why: Finding | None = None
        """What was found of a nursery that stood still, if that is how the last one was lost."""
        self._checked_s = 0.0
        self._awake, self._resting = threading.Event(), threading.Event()
        self._bell = Bell()

    # -- any thread ------------------------------------------------------------------------------------------------

    def keep(self, crew: Kept) -> None:
        """Look after a crew until it is dropped or nobody holds it."""
        with self._lock:
            self._kept.add(crew)
            self._have_thread()

    def drop(self, crew: Kept) -> None:
        """Look after it no more."""
        self._kept.discard(crew)

    def end(self, crew: Kept) -> None:
        """Have a crew closed by the thread. Takes no lock: the collector may call this anywhere."""
        self._ending.append(crew)
        self.wake()

    def bear(self, crew: Kept, message: Bear, fds: list[int], modules: tuple[str, ...]) -> None:
        """Ask for a worker that needs these modules; the crew hears of it."""
        with self._lock:
            self._owners[message.token] = crew
            self._requests.append(_Request(message, fds, modules))
            self._have_thread()
        self.wake()

    def bury(self, token: int, grace_s: float) -> None:
        """Ask for a worker's end. Takes no lock: the collector may call this anywhere."""
        self._requests.append(_Request(Bury(token, grace_s), []))
        self.wake()

    def wake(self) -> None:
        """Have the thread look now."""
        self._bell.ring()

    def rest(self) -> None:
        """Have the thread do nothing from now on, unless somebody needs it. Workers live on."""
        self._resting.clear()  # Order: first, or what the thread says at once would be lost
        self._awake.clear()
        if self._thread is not None:
            self.wake()
            self._resting.wait(_EXIT_S)

    def _have_thread(self) -> None:
        self._awake.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="antifreeze-keeper", daemon=True)
            self._thread.start()

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
                    if not (self._nursery or self._kept or self._requests or self._ending):
                        self._thread = None
                        break
                self._faults = 0
            except Exception as error:
                # border: whatever fails here must not end the thread, for every worker would end with it
                logger.exception("antifreeze: the keeper of workers has failed, and goes on")
                self._faults += 1
                if self._faults >= _TRIES:
                    self._doom(keeper_failed(error))
                time.sleep(TEND_S)
        self._resting.set()  # Order: after the end was noted. Who saw the thread before waits for this

    def _look(self) -> None:
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        if self._nursery is not None:
            poll.register(self._nursery.channel.fileno(), select.POLLIN)
        poll.poll(TEND_S * 1000)
        self._bell.silence()
        self._hear()
        self._ask()
        for crew in [*self._kept, *(self._ending.popleft() for _ in range(len(self._ending)))]:
            crew.tend()

    def _hear(self) -> None:
        nursery = self._nursery
        if nursery is None:
            return
        try:
            nursery.channel.flush_nowait()
            messages = nursery.channel.receive_nowait()
        except Closed:
            self._lose_nursery()
            return
        for message, _ in messages:
            if isinstance(message, Hello):
                nursery.num_loads -= 1
                self._failures = 0
            elif isinstance(message, Born):
                self._asked[message.token] = message.pid
                if (owner := self._owners.get(message.token)) is not None:
                    owner.born(message.token, message.pid)
            elif isinstance(message, Died):
                self._asked.pop(message.token, None)
                self._tell_died(message.token, message.code)
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_S:
            return
        self._checked_s = now_s
        if nursery.is_stopped():
            logger.warning("antifreeze: the nursery of workers (pid %s) was stopped; it is replaced", nursery.pid)
            self._lose_nursery()
            return
        is_asked = nursery.num_loads > 0 or 0 in self._asked.values()
        finding = nursery.bedside.stuck(self._limits(), is_asked=is_asked)
        if finding is not None:
            self._lose_nursery(finding)

    def _limits(self) -> Limits:
        """Return the shortest limits that a user has set."""
        found = [crew.terms.limits for crew in list(self._kept)]
        return min(found, key=lambda limits: limits.stall_limit_s or math.inf, default=Limits())

    def _tell_died(self, token: int, code: int | None) -> None:
        owner = self._owners.get(token)
        if owner is not None:
            owner.died(token, code)

    def _ask(self) -> None:
        while self._requests:
            message, fds, modules = self._requests[0]
            wanted = message.token in (self._owners if isinstance(message, Bear) else self._asked)
            if wanted and self._nursery is None and not self._start():
                return
            self._requests.popleft()
            if not wanted or self._nursery is None:
                for fd in fds:
                    os.close(fd)
                continue
            self._asked.setdefault(message.token, 0)
            try:
                self._nursery.tell(message, fds, modules)
            except Closed:
                self._lose_nursery()

    def _start(self) -> bool:
        """Start a nursery; False if there can be none."""
        if self._failures >= _TRIES:
            self._doom(never_ready(_TRIES, self._why))
            return False
        try:
            self._nursery = start_nursery()
        except AntifreezeError as error:
            self._doom(error)
            return False
        except OSError as error:
            self._doom(no_descriptors(error))
            return False
        return True

    def _doom(self, error: AntifreezeError) -> None:
        """Tell all crews that no worker can be had."""
        self._failures = 0
        while self._requests:
            for fd in self._requests.popleft().fds:
                os.close(fd)
        for crew in list(self._kept):
            crew.doomed(error)

    def _lose_nursery(self, why: Finding | None = None) -> None:
        """The nursery has ended, or is ended now: have those of its workers that are still wanted born elsewhere."""
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            return
        if nursery.num_loads or why is not None:
            self._failures += 1
            self._why = why
        nursery.end()
        lost, self._asked = self._asked, {}
        for token, pid in lost.items():
            if pid:
                kill_group(pid)  # what it had started
            self._tell_died(token, None)


_keeper = Keeper()


def the_keeper() -> Keeper:
    """Return the keeper of this process."""
    return _keeper


def _in_child() -> None:
    """Forget everything that belongs to the parent: its thread is not here, and its nursery is not ours."""
    global _keeper
    before, _keeper = _keeper, Keeper()
    before._bell.close()
    if before._nursery is not None:
        before._nursery.channel.close()


def _at_exit() -> None:
    # A daemon that comes back from native code while the interpreter ends can bring the process down with it: to let go
    # of a tensor is enough.
    _keeper.rest()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
