"""Replaces objects that belong to one process (locks, pools, handles) in a worker.

A fork copies such objects in their current state: locked, or with threads that do not exist in the child. Here a worker
gets a fresh lock or a fresh pool instead. Locks of multiprocessing exclude the workers of one loader from each other;
the kernel releases them when their holder exits.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import multiprocessing.synchronize
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from antifreeze.ipc import create

_LOCK_INTERVAL_S = 0.001
_MAX_LOCK_INTERVAL_S = 0.05
_TRACKER = "multiprocessing.resource_tracker"
_handles: list[int] = []
_shared: set[int] = set()
"""Descriptors that workers share on purpose: those of queues, pipes, locks and the resource tracker."""


def shared_handles() -> frozenset[int]:
    """Return the descriptors that workers share on purpose."""
    return frozenset(_shared)


@contextlib.contextmanager
def received_handles(fds: list[int], tracker: int) -> Iterator[None]:
    """Make descriptors that were sent with the payload available to the objects rebuilt from it, then close them.

    One of them may be that of the trainer's resource tracker, which records named resources for multiprocessing. A
    worker with another tracker would unlink the trainer's shared memory when it exits.
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
    """Index of a descriptor in a payload; multiprocessing's objects call ``detach`` on it."""

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
    """A lock between the workers of one loader that is released when its holder exits.

    A semaphore, which multiprocessing uses, has no owner: if its holder is killed, it is never released.
    """

    def __init__(self, handle: Handle, offset: int, recursive: bool) -> None:
        self._fd = handle.detach()
        self._offset = offset
        self._inside = threading.RLock() if recursive else threading.Lock()
        self._depth = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take the lock, as ``multiprocessing.Lock.acquire`` does."""
        wait_s = None if block and timeout is None else max(timeout or 0.0, 0.0) if block else 0.0
        end_s = None if wait_s is None else time.monotonic() + wait_s
        if not self._inside.acquire(timeout=-1 if wait_s is None else wait_s):
            return False
        taken = False
        try:
            taken = self._depth > 0 or self._take(end_s)
        finally:
            if not taken:  # also after an error, such as a deadlock: the next sample may need it
                self._inside.release()
        self._depth += taken
        return taken

    def _take(self, end_s: float | None) -> bool:
        how = fcntl.LOCK_EX if end_s is None else fcntl.LOCK_EX | fcntl.LOCK_NB
        interval_s = _LOCK_INTERVAL_S
        while True:
            try:
                fcntl.lockf(self._fd, how, 1, self._offset)
            except OSError as error:
                if error.errno == errno.EDEADLK:  # the kernel detected that two workers wait for each other
                    raise RuntimeError("deadlock: two workers wait for each other's multiprocessing.Lock") from error
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
                if end_s is not None and time.monotonic() >= end_s:
                    return False
                time.sleep(interval_s)
                interval_s = min(2 * interval_s, _MAX_LOCK_INTERVAL_S)
            else:
                return True

    def release(self) -> None:
        """Release the lock."""
        if not self._depth:
            raise ValueError("semaphore or lock released too many times")
        self._depth -= 1
        if self._depth == 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._offset)
        self._inside.release()

    def __enter__(self) -> bool:
        # Without a timeout, as the user wrote it; a worker that waits here for too long is replaced by the supervisor.
        return self.acquire(block=True, timeout=None)

    def __exit__(self, *_: object) -> None:
        self.release()


class HandleTransfer:
    """The trainer's side: collects the descriptors of objects while they are pickled."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._locks: dict[int, int] = {}
        self._whole: set[int] = set()
        self._lock_file: Handle | None = None
        self._held: list[Any] = []
        self.environments: list[Any] = []
        """Those of LMDB in this pickle: a transaction does not report which one it belongs to."""

    # The two methods that multiprocessing requires of a process that is being started.
    def duplicate_for_child(self, fd: int) -> int:
        """Add a descriptor; return its index."""
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    DupFd = Handle

    def identities(self) -> list[Any]:
        """Return what the descriptors refer to, so that two sets of them can be compared."""
        own = None if self._lock_file is None else self._lock_file.number
        found = [os.fstat(fd) for fd in self.fds]
        return [number == own or (each.st_dev, each.st_ino) for number, each in enumerate(found)]

    def duplicate_tracker(self) -> int:
        """Add the descriptor of multiprocessing's resource tracker; return its index, or -1 if there is none."""
        tracker: Any = sys.modules.get(_TRACKER)
        fd = None if tracker is None else tracker._resource_tracker._fd
        return -1 if fd is None else self.duplicate_for_child(fd)

    def reduce_condition(self, condition: Any) -> Any:
        """Keep a condition, or an event, which has one, shared: the trainer takes part in it."""
        self._whole.add(id(condition._lock))
        self._held.append(condition)
        return NotImplemented

    def reduce_lock(self, lock: Any) -> Any:
        """Replace a lock by one that the kernel releases, unless it belongs to a condition."""
        if id(lock) in self._whole:
            return NotImplemented
        if self._lock_file is None:
            self.fds.append(create("antifreeze-locks", 1))
            self._lock_file = Handle(len(self.fds) - 1)
        offset = self._locks.setdefault(id(lock), len(self._locks))
        self._held.append(lock)  # so that its id is not reused
        return KernelLock, (self._lock_file, offset, isinstance(lock, multiprocessing.synchronize.RLock))

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())
