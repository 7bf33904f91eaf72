"""What takes the place, in a worker, of objects that belong to one process: locks, pools, handles.

Under fork such objects were copied as they stood, locked or with threads that did not come along. Here each has a
meaning of its own in a worker: a fresh lock, a fresh pool. Locks of multiprocessing exclude the workers of one loader
from each other; the kernel frees them when their holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import multiprocessing.reduction
import multiprocessing.synchronize
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from antifreeze.payload._databases import LmdbHandles
from antifreeze.payload._reducers import Reduce, rebuilder

_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.05
_TRACKER = "multiprocessing.resource_tracker"
_handles: list[int] = []
_shared: set[int] = set()
"""Descriptors that workers have in common on purpose: of queues, pipes and locks, and of the tracker."""


def shared_handles() -> frozenset[int]:
    """Return the descriptors that workers are meant to have in common."""
    return frozenset(_shared)


@contextlib.contextmanager
def received_handles(fds: list[int], tracker: int) -> Iterator[None]:
    """Make descriptors that came with the payload available to the objects that are rebuilt from it, then close them.

    One of them may lead to the process in which multiprocessing writes down what has a name: the trainer's own. A
    worker that had another would give up the trainer's shared memory at its end.
    """
    _handles[:] = fds
    if tracker >= 0:
        importlib.import_module(_TRACKER)._resource_tracker._fd = _duplicate(fds[tracker])
    try:
        yield
    finally:
        while _handles:
            os.close(_handles.pop())


class Handle:
    """The place of a descriptor in a payload; what multiprocessing's objects call ``detach`` on."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """Return the descriptor in this process."""
        return _duplicate(_handles[self.number])


def _duplicate(fd: int) -> int:
    shared = os.dup(fd)
    _shared.add(shared)
    return shared


class KernelLock:
    """A lock between the workers of one loader that its holder's death sets free.

    A semaphore, which multiprocessing uses, has no owner: if its holder is killed, it is never given back.
    """

    def __init__(self, handle: Handle, place: int, recursive: bool) -> None:
        self._fd = handle.detach()
        self._place, self._recursive = place, recursive
        self._inside = threading.RLock() if recursive else threading.Lock()
        self._depth = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take the lock, as ``multiprocessing.Lock.acquire`` does."""
        end_s = None if timeout is None else time.monotonic() + max(timeout, 0)
        wait_s = -1.0 if block and timeout is None else max(timeout or 0.0, 0.0) if block else 0.0
        if not self._inside.acquire(block, wait_s if block else -1):
            return False
        taken = False
        try:
            taken = self._depth > 0 or self._take(block, end_s)
        finally:
            if not taken:  # also after an error, a deadlock say: the next sample may need it
                self._inside.release()
        self._depth += taken
        return taken

    def _take(self, block: bool, end_s: float | None) -> bool:
        look_s = _LOOK_S
        while True:
            try:
                if block and end_s is None:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._place)
                else:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
            except OSError as error:
                if error.errno == errno.EDEADLK:  # the kernel sees two workers wait for each other
                    raise RuntimeError("deadlock: two workers wait for each other's multiprocessing.Lock") from error
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
                if not block or (end_s is not None and time.monotonic() >= end_s):
                    return False
                time.sleep(look_s)
                look_s = min(2 * look_s, _LONGEST_LOOK_S)
            else:
                return True

    def release(self) -> None:
        """Give the lock back."""
        if not self._depth:
            raise ValueError("semaphore or lock released too many times")
        self._depth -= 1
        if self._depth == 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._place)
        self._inside.release()

    def __enter__(self) -> bool:
        # Without a limit, as the user has written it; a worker that waits here for too long is replaced from outside.
        return self.acquire(block=True, timeout=None)

    def __exit__(self, *_: object) -> None:
        self.release()


class HandleTransfer:
    """The trainer's side: notes which descriptors must come along while an object is taken apart."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._locks: dict[int, int] = {}
        self._whole: set[int] = set()
        self._lock_file: Handle | None = None
        self._held: list[Any] = []
        self._lmdb = LmdbHandles()

    # The two methods that multiprocessing asks of a process that is being started.
    def duplicate_for_child(self, fd: int) -> int:
        """Note a descriptor."""
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    DupFd = Handle

    def identities(self) -> list[Any]:
        """Return what the descriptors lead to, so that two sets of them can be compared."""
        own = None if self._lock_file is None else self._lock_file.number
        found = [os.fstat(fd) for fd in self.fds]
        return [number == own or (each.st_dev, each.st_ino) for number, each in enumerate(found)]

    def duplicate_tracker(self) -> int:
        """Note the way to the process in which multiprocessing writes down what has a name; -1 if there is none."""
        tracker: Any = sys.modules.get(_TRACKER)
        fd = None if tracker is None else tracker._resource_tracker._fd
        return -1 if fd is None else self.duplicate_for_child(fd)

    def reducer(self, kind: type) -> Reduce | None:
        """Return how to take objects of a kind apart that belong to one process; None for all others."""
        for known, reduce in _REDUCERS:
            if issubclass(kind, known):
                return reduce
        if issubclass(kind, (multiprocessing.synchronize.Lock, multiprocessing.synchronize.RLock)):
            return self._lock
        if issubclass(kind, multiprocessing.synchronize.Condition):
            return self._condition
        if hasattr(lmdb := sys.modules.get("lmdb"), "Environment"):
            for known, reduce in self._lmdb.reducers(lmdb):
                if kind is known:
                    return reduce
        others: dict[type, Any] = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        shared: Reduce | None = others.get(kind)
        # Shared values, queues and pipes. Others have registered theirs too: torch's would need files in /dev/shm, and
        # that for sockets would have all workers talk over one connection.
        return shared if getattr(shared, "__module__", "") in _SHARED else rebuilder(kind)

    def _condition(self, condition: Any) -> Any:
        """Leave a condition, and an event, which has one, as they are: the trainer takes part in them."""
        self._whole.add(id(condition._lock))
        self._held.append(condition)
        return NotImplemented

    def _lock(self, lock: Any) -> Any:
        if id(lock) in self._whole:
            return NotImplemented
        if self._lock_file is None:
            from antifreeze.ipc import create

            self.fds.append(create("antifreeze-locks", 1))
            self._lock_file = Handle(len(self.fds) - 1)
        place = self._locks.setdefault(id(lock), len(self._locks))
        self._held.append(lock)  # so that no other one gets its id
        return KernelLock, (self._lock_file, place, isinstance(lock, multiprocessing.synchronize.RLock))

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())


def _pool(pool: Any) -> Any:
    return ThreadPoolExecutor, (pool._max_workers, pool._thread_name_prefix, pool._initializer, pool._initargs)


_SHARED = {f"multiprocessing.{name}" for name in ("sharedctypes", "heap", "connection", "queues", "managers")}
_REDUCERS: list[tuple[Any, Reduce]] = [
    (type(threading.Lock()), lambda _: (threading.Lock, ())),
    (type(threading.RLock()), lambda _: (threading.RLock, ())),
    (threading.local, lambda _: (threading.local, ())),
    (queue.SimpleQueue, lambda _: (queue.SimpleQueue, ())),
    (ThreadPoolExecutor, _pool),
]
