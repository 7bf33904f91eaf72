"""The supervisor: one thread of the trainer that watches the fork server, its branches, and all pools.

Problem. Workers must be replaced while the training loop is busy elsewhere, and no process may be left behind when the
trainer exits or is killed, even by SIGKILL, when no code of ours runs.

Guarantees:

- The thread itself starts the fork server, and runs as long as it does. The fork server asks the kernel for a signal
  on the exit of its parent *thread* (PR_SET_PDEATHSIG), and every process below it does the same. So when the trainer
  ends, however that happens, the kernel ends the whole tree, and interpreter exit has nothing to clean up.
- A lost worker is replaced during a long training step, before its batch is missed.
- A fault in the supervisor is logged and survived. If it recurs, all pools fail with an error instead of hanging.

Assumptions. Nothing called from this thread blocks: sockets are nonblocking, ``Supervised.poll`` gives up if it cannot
get the pool's lock, and every wait has a timeout. The thread stops when no pool, process or request is left.
"""

# Invariant: this thread must not drop the last reference to a user object, because a finalizer that blocks would stop
# all supervision. The only user code it may run are the reducers of a sampler's indices, when it assigns tasks.
# Order: requests are served in the order in which they were made. Those that need a thread are appended under ``_lock``
# together with the check that it runs, and the thread decides to stop under the same lock. So no request is left in the
# queue without a thread to serve it.
# Signal-safe: ``end``, ``terminate`` and ``release`` take no lock, only append to a deque and write to a pipe. The
# garbage collector may call them at any instruction, also in a thread that holds ``_lock``.
# Fork-safe: a forked child gets a new ``Supervisor`` and closes the inherited descriptors; the tree stays the parent's.
# Tried: a thread in each worker that watches a pidfd of the trainer. It does not run in a stopped worker, nor while
# native code holds the interpreter lock.
# Rejected: the ``forkserver`` of multiprocessing. It imports ``__main__`` again, and its workers outlive a trainer that
# was killed.
# Tried: one class for all requests, with optional fields. Which of them were set decided what it meant.
# Tried: leaving the fork server unwatched, since it runs no user code. It imports modules, and the disk may hang.

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from antifreeze.core import AntifreezeError, get_logger
from antifreeze.forkserver import Spawn
from antifreeze.pool._failures import supervisor_failed
from antifreeze.pool._template import Template
from antifreeze.pool._tree import Supervised, Tree

logger = get_logger()

POLL_INTERVAL_S = 0.2
_MAX_FAULTS = 3
_EXIT_TIMEOUT_S = 5.0
_FAULT_RESET_S = 10.0
"""How long the thread must run without a fault until earlier ones no longer count: some recur only every other turn."""


class WakeupPipe:
    """A self-pipe. ``notify`` takes no lock and may be called from anywhere, the garbage collector included."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._in = self._out = -1
        if is_open:
            self.open()

    def open(self) -> None:
        """Create the pipe; without one, ``notify`` does nothing. May be called twice."""
        if self._in < 0:
            self._in, self._out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 when closed."""
        return self._in

    def notify(self) -> None:
        """Wake the waiting thread, or make its next wait return at once."""
        with contextlib.suppress(OSError):  # a full pipe wakes the thread as well; a closed one has no reader
            os.write(self._out, b"x")

    def drain(self) -> None:
        """Discard pending notifications, so that the next wait blocks."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._in, 4096)

    def close(self) -> None:
        """Close the pipe. May be called twice."""
        if self._in >= 0:
            os.close(self._in)
            os.close(self._out)
            self._in = self._out = -1


class Supervisor:
    """The supervisor thread and its state. Methods for any thread come first; everything else runs in that thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._requests: deque[Callable[[], None]] = deque()
        self._kept: weakref.WeakSet[Any] = weakref.WeakSet()
        self._owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._tree = Tree(self._owners, self._kept, self.release)
        self._faults, self._faulted_s = 0, 0.0
        self._awake, self._resting = threading.Event(), threading.Event()
        self._wakeup = WakeupPipe(is_open=False)

    # -- any thread ------------------------------------------------------------------------------------------------

    def supervise(self, pool: Supervised) -> None:
        """Supervise a pool until it is dropped or garbage collected. The fork server starts at once."""
        self._kept.add(pool)
        self._request(self._tree.want_root)

    def drop(self, pool: Supervised) -> None:
        """Stop supervising a pool."""
        self._kept.discard(pool)

    def end(self, pool: Supervised) -> None:
        """Close a pool in the supervisor's thread. Takes no lock: the garbage collector may call this anywhere."""
        self._request_signal_safe(pool.poll)

    def start(self, template: Template) -> None:
        """Start the process of a template in the background."""
        self._request(partial(self._tree.want, template))

    def spawn(self, pool: Supervised, message: Spawn, fds: list[int], template: Template) -> None:
        """Request a worker; the pool is notified when it has been spawned."""
        self._owners[message.token] = pool
        self._request(partial(self._tree.want, template, (message, fds)))

    def add_modules(self, template: Template, names: tuple[str, ...]) -> None:
        """Import modules that a worker imported into its template, in the background, for the next workers."""
        self._request(partial(template.extra_modules.add, names))

    def terminate(self, token: int, grace_s: float) -> None:
        """Request the termination of a worker. Takes no lock: the garbage collector may call this anywhere."""
        self._request_signal_safe(partial(self._tree.terminate, token, grace_s))

    def release(self, number: int) -> None:
        """Retire the processes of an unreferenced template. Takes no lock: the collector may call this anywhere."""
        self._request_signal_safe(partial(self._tree.retire, number))

    def _request(self, act: Callable[[], None]) -> None:
        with self._lock:
            self._requests.append(act)
            self._ensure_thread()
        self._wakeup.notify()

    def _request_signal_safe(self, act: Callable[[], None]) -> None:
        self._requests.append(act)
        self._wakeup.notify()

    def rest(self) -> None:
        """Pause the thread until it is needed again. Workers keep running."""
        self._resting.clear()  # Order: first, or a ``set`` by the thread right after would be lost
        self._awake.clear()
        if self._thread is not None:
            self._wakeup.notify()
            self._resting.wait(_EXIT_TIMEOUT_S)

    def end_unready_root(self) -> None:
        """Kill a fork server that has not started up: stuck there, it would not notice that this process has exited."""
        root = next(iter(self._tree.servers()), None)
        if root is not None and root.num_pending and not root.asked:
            root.kill()

    def forget(self) -> None:
        """Close the parent's descriptors in a forked child, which does not have the parent's thread."""
        self._wakeup.close()
        for server in self._tree.servers():
            server.close()

    def _ensure_thread(self) -> None:
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
                self._awake.wait(POLL_INTERVAL_S)
                continue
            try:
                self._run_once()
                with self._lock:
                    if not (self._tree.is_needed or self._kept or self._requests):
                        self._thread = None
                        break
                if time.monotonic() - self._faulted_s > _FAULT_RESET_S:
                    self._faults = 0
            except Exception as error:
                # border: no error may end this thread, because every worker would be killed with it
                logger.exception("antifreeze: the worker supervisor failed and continues")
                self._faults += 1
                self._faulted_s = time.monotonic()
                if self._faults >= _MAX_FAULTS:
                    self._fail_all_pools(supervisor_failed(error))
                time.sleep(POLL_INTERVAL_S)
        self._resting.set()  # Order: after the thread was cleared; ``rest`` waits for this if it saw the thread before

    def _run_once(self) -> None:
        poll = select.poll()
        poll.register(self._wakeup.fileno(), select.POLLIN)
        for server in self._tree.servers():
            if server.closed_s is None:
                poll.register(server.channel.fileno(), select.POLLIN)
        poll.poll(POLL_INTERVAL_S * 1000)
        self._wakeup.drain()
        for server in self._tree.servers():
            self._tree.receive(server)
        self._tree.check(self._stall_limit_s)
        while self._requests:
            self._requests.popleft()()
        if (error := self._tree.advance()) is not None:
            self._fail_all_pools(error)
        for pool in list(self._kept):
            pool.poll()

    def _stall_limit_s(self) -> float | None:
        """Return the shortest limit of all pools."""
        found = [pool.config.stall_limit_s for pool in list(self._kept)]
        return min((limit_s for limit_s in found if limit_s is not None), default=None)

    def _fail_all_pools(self, error: AntifreezeError) -> None:
        """Notify all pools that no worker can be spawned."""
        self._tree.give_up()
        for pool in list(self._kept):
            pool.on_fatal(error)


_supervisor = Supervisor()


def the_supervisor() -> Supervisor:
    """Return the supervisor of this process."""
    return _supervisor


def _in_child() -> None:
    """Replace the supervisor in a forked child: the parent's thread and fork server do not belong to it."""
    global _supervisor
    before, _supervisor = _supervisor, Supervisor()
    before.forget()


def _at_exit() -> None:
    # A daemon thread that returns from native code while the interpreter shuts down can crash the process: releasing a
    # tensor is enough.
    _supervisor.rest()
    _supervisor.end_unready_root()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
