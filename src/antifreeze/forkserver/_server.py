"""The processes that fork others: the fork server, and its branches that have imported and loaded something.

Problem. A worker needs the libraries of a dataset and the dataset itself. The trainer has both, and must never be
forked: its locks, threads and connections would be copied. A fresh interpreter for each worker would spend seconds on
importing and loading, in every epoch, and hold its own copy of every Python object.

So there is a tree of single-threaded processes, each running the loop below:

    trainer ──spawns──▶ fork server            clean: has imported NumPy, and torch if workers need it
                          └─forks──▶ base       has imported the modules of the dataset, and runs nothing
                                └─forks──▶ template    has loaded the dataset of one loader
                                      ├─forks──▶ workers, in milliseconds; everything is shared copy-on-write
                                      └─forks──▶ template    has also imported what workers imported while running;
                                                             forks the next ones

Guarantees:

- The fork server never runs user code. A base runs the top level of the user's modules and a template what unpickling
  calls, never ``__getitem__``, a transform or a collate function.
- Neither is forked unless that is safe (see ``_fork_safety``): otherwise workers are forked from the fork server, and
  each loads the payload itself.
- The loss of a process anywhere in the tree ends its own branches and nothing else: every process asks the kernel for
  SIGKILL on the exit of its parent.
- A dataset that was changed between two epochs gets another template, from the same base.
- No program that user code started outlives the trainer for long. When it exits, the kernel sends SIGCONT to the fork
  server, which wakes it even if it is stopped. It kills its children; their descendants become its children, because it
  is a subreaper, and are killed next, until none is left. When a worker or a branch exits earlier, its parent does the
  same with what it leaves behind.

Assumptions. Linux, for parent-death signals, subreapers and the fork safety check; elsewhere workers are forked from
the fork server only. The libraries that the fork server imports start no thread, given one BLAS thread.
"""

# Invariant: a server has one thread whenever it forks. Only then can no lock be held by a thread that the child lacks.
# Invariant: a child never returns into its parent's loop: ``_be_child`` ends in ``os._exit``.
# Order: a process group first, then the parent-death signal, then everything else, so that a child that is lost at any
# later instruction is found and killed together with what it has started.
# Tried: SIGKILL for the fork server as well when the trainer exits. Only the fork server knows the programs that
# workers have started, and they survived.
# Rejected: checking Python's threads only. Native thread pools (OpenMP, Rayon) have no Python threads.
#
# Programs that user code left behind. One that a worker started with ``start_new_session=True`` or ``setsid`` is in no
# process group of ours, gets no signal when its parent exits, and would outlive the worker, the trainer and the job.
# So every process of the tree is a subreaper (Linux): when a process exits, its children are reparented to the nearest
# ancestor that is a subreaper. A running worker keeps what it has started, and what its programs have left behind. When
# the worker exits, all of that is reparented to the process that forked it, which knows its own children: any other
# child is an orphan, and is killed. Then the children of the orphan follow, and so on.
# Order: the kernel reparents children before it reports the exit to the parent. So the orphans of a worker are visible
# as soon as the worker was reaped, and there is no need to look for them at other times.
# Tried: process groups and sessions alone. ``start_new_session=True`` leaves both.
# Tried: only the fork server as a subreaper. It cannot distinguish a daemon that a running worker has just started from
# what a lost worker has left behind, and would kill the helper of a running worker.
# Known limitation: if the fork server itself is killed (SIGKILL), its orphans go to init, and can no longer be found.
# Rejected: importing the user's modules in the fork server. One that starts a thread would spoil it for all loaders.
# Rejected: loading a changed dataset into the old template. Both would be in memory, which would grow with every epoch.

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from antifreeze.core import one_line, own_children, own_descriptors, seconds
from antifreeze.forkserver._fork_safety import why_not_to_fork
from antifreeze.ipc import HEARTBEAT_NBYTES, Channel, Closed, HeartbeatWriter, map_bytes

LINGER_S = seconds(os.environ.get("ANTIFREEZE_FORKSERVER_LINGER_S", ""), 1.5)
"""How long an idle fork server stays: the next loader often starts soon. Tests shorten it."""
_POLL_INTERVAL_S = 0.25
_REAP_TIMEOUT_S = 10.0
"""How long the fork server tries to kill what is left when the trainer is gone: a dead disk can block a process."""
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_TIMERSLACK, _PR_SET_CHILD_SUBREAPER = 1, 15, 29, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_NBYTES, _KEPT_NBYTES = 32 << 20, 64 << 20


# -- messages between the trainer and the servers --------------------------------------------------------------------


class Preload(NamedTuple):
    """Trainer to fork server: import libraries that all workers need, and answer ``Preloaded``."""

    modules: tuple[str, ...]


class Branch(NamedTuple):
    """Trainer to any server: fork another server. Its channel and stack file are sent with the message."""

    token: int
    name: str


class Prepare(NamedTuple):
    """Trainer to a branch: take over the environment, import modules, load a payload; answer ``Prepared``.

    The payload's descriptors are sent with the message.
    """

    environment: Any
    modules: tuple[str, ...]
    payload: Any = None


class Spawn(NamedTuple):
    """Trainer to any server: fork a worker. Its channel, heartbeat and stack file are sent with the message."""

    token: int
    slot: int


class Terminate(NamedTuple):
    """Trainer to any server: kill a process that it has forked, at once or after a grace period."""

    token: int
    grace_s: float


class Retire(NamedTuple):
    """Trainer to a branch: fork nothing more, and exit after the last forked process has exited."""


class Preloaded(NamedTuple):
    """Fork server to trainer: the requested libraries are imported."""


class Prepared(NamedTuple):
    """Branch to trainer: the requested modules and payload are loaded, or why they are not."""

    failure: Any
    """The error that user code raised while the payload was loaded, or None."""
    unsafe: str
    """Why this process must not be forked; "" if it can be."""
    seconds: float


class Spawned(NamedTuple):
    """Server to trainer: a process was forked."""

    token: int
    pid: int


class Exited(NamedTuple):
    """Server to trainer: a forked process has exited. Negative codes are signals, as in ``subprocess``."""

    token: int
    pid: int
    code: int


# -- a process --------------------------------------------------------------------------------------------------------


def main(fd: int, owner_pid: int) -> NoReturn:
    """Run as the fork server until the owner exits, or until it has been idle for a while."""
    server = _Server(Channel(socket.socket(fileno=fd)), owner_pid, is_root=True)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    end_with_parent(owner_pid, signal.SIGCONT)
    _prctl(_PR_SET_NAME, b"af-forkserver")
    server.run()


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def import_modules(names: tuple[str, ...]) -> None:
    """Import the modules of a dataset. A failing import is left to the code that needs the module."""
    for name in names:
        with contextlib.suppress(Exception, SystemExit):  # border: the user's modules may do anything
            importlib.import_module(name)


def end_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel kill this process when its parent exits, even if it is stopped or holds the interpreter lock.

    With another signal than SIGKILL, the handler of that signal has to end the process.
    """
    # Assumption: the parent's thread that started this process lives as long as the parent: the kernel sends the signal
    # when that thread exits. In the trainer it is the supervisor, which runs as long as the fork server, and the latter
    # has one thread.
    _prctl(_PR_SET_PDEATHSIG, number)
    # Order: after the request. A parent that exited before it has sent no signal, and is noticed here.
    if os.getppid() != parent_pid:
        os._exit(0)


class _Server:
    """Forks and reaps. Used by the only thread of its process."""

    def __init__(self, channel: Channel, owner_pid: int, *, is_root: bool, program: Any = None) -> None:
        self._channel, self._owner_pid, self._is_root = channel, owner_pid, is_root
        self._tokens: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._ends_s: dict[int, float] = {}
        self._program = program
        """The workers' program, loaded here or in the process that this one was forked from."""
        self._programs: set[int] = set()
        """Processes started by the user's modules at import, and what those left behind."""
        self._is_retiring = False
        self._idle_since_s = time.monotonic()
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if is_root:
            signal.signal(signal.SIGCONT, self._end_without_owner)
        signal.set_wakeup_fd(self._wake_out)

    def run(self) -> NoReturn:
        """Serve until there is nothing left to do, then kill everything that was forked here."""
        with contextlib.suppress(Closed):
            self._serve()
        self._kill_all()
        os._exit(0)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake_in, select.POLLIN)
        while not self._is_done():
            poll.poll(_POLL_INTERVAL_S * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_in, 4096)
            self._reap()
            for message, fds in self._channel.receive_nowait():
                self._handle(message, fds)
            self._kill_overdue()
            self._channel.flush_nowait()

    def _is_done(self) -> bool:
        if self._pids:
            self._idle_since_s = time.monotonic()
            return False
        return self._is_retiring or (self._is_root and time.monotonic() - self._idle_since_s > LINGER_S)

    def _handle(self, message: Any, fds: list[int]) -> None:
        if isinstance(message, Preload):
            # Order: nothing is called, so no thread is started and no lock is taken before the first fork.
            import_modules((*message.modules, "antifreeze.worker"))
            gc.freeze()
            self._idle_since_s = time.monotonic()
            self._channel.send_nowait(Preloaded())
        elif isinstance(message, Prepare):
            self._channel.send_nowait(self._prepare(message, fds))
        elif isinstance(message, Branch | Spawn):
            self._fork(message, fds)
        elif isinstance(message, Terminate) and message.token in self._pids:
            self._ends_s[message.token] = time.monotonic() + message.grace_s
        elif isinstance(message, Retire):
            self._is_retiring = True

    def _prepare(self, message: Prepare, fds: list[int]) -> Prepared:
        """Import and load what workers need. Runs user code: the top level of modules, and what unpickling calls."""
        from antifreeze.payload import has_deferred, loading_for_forks, reopened_fds, shared_handles
        from antifreeze.worker import UserError, apply_environment, failure_of, load_program

        before, began_s = own_descriptors(), time.perf_counter()
        for fd in fds:
            before.pop(fd)  # closed once the payload is loaded
        apply_environment(message.environment)
        failure, unsafe = None, ""
        import_modules(message.modules)
        if message.payload is not None:
            try:
                with loading_for_forks():
                    self._program = load_program(message.payload, fds)
            except UserError as error:
                if has_deferred():
                    unsafe = f"loading failed while handles were not open yet ({error.__cause__!r})"
                else:
                    failure = failure_of(error)
        gc.freeze()  # a garbage collection would write to every object, and so copy every page, in every worker
        self._programs.update(self._unknown_children())
        unsafe = unsafe or why_not_to_fork(before, shared_handles() | reopened_fds())
        return Prepared(failure, unsafe, time.perf_counter() - began_s)

    # -- forking ---------------------------------------------------------------------------------------------------

    def _fork(self, message: Branch | Spawn, fds: list[int]) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # the limit on processes is reached
            print(f"antifreeze: cannot start a worker: {one_line(error)}", file=sys.stderr)
            self._channel.send_nowait(Exited(message.token, 0, os.EX_OSERR))
            return
        finally:
            if os.getpid() == me:
                for fd in fds:
                    os.close(fd)
        if pid == 0:
            self._be_child(me, message, fds)
        self._tokens[pid], self._pids[message.token] = message.token, pid
        self._channel.send_nowait(Spawned(message.token, pid))

    def _be_child(self, parent: int, message: Branch | Spawn, fds: list[int]) -> NoReturn:
        """Run as a branch or a worker. A child must never return into its parent's loop."""
        try:
            os.setpgid(0, 0)  # so that its subprocesses can be killed with it
            end_with_parent(parent)
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGCONT):
                signal.signal(number, signal.SIG_DFL)
            self._channel.close()
            os.close(self._wake_in)
            os.close(self._wake_out)
            if isinstance(message, Branch):
                _branch(message.name, *fds, owner_pid=parent, program=self._program)
            _work(message.slot, *fds, program=self._program)
        except BaseException:  # noqa: BLE001  border: whatever user code does to a worker
            import traceback

            traceback.print_exc()
            os._exit(70)
        os._exit(0)

    # -- reaping -----------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _kill(os.killpg, pid)
            if pid in self._programs:  # it may have left a daemon behind, of the same origin
                self._programs.remove(pid)
                self._programs.update(self._unknown_children())
                continue
            for orphan in self._unknown_children():
                _kill(os.kill, orphan)
            token = self._tokens.pop(pid, None)
            if token is None:
                continue  # an orphan, or the branch of a branch that was killed
            self._pids.pop(token, None)
            self._idle_since_s = time.monotonic()
            self._ends_s.pop(token, None)
            self._channel.send_nowait(Exited(token, pid, os.waitstatus_to_exitcode(status)))

    def _unknown_children(self) -> list[int]:
        """Return the children that were not forked here: orphans of lost processes."""
        known = self._tokens.keys() | self._programs
        return [pid for pid in own_children() if pid not in known]

    def _kill_overdue(self) -> None:
        now_s = time.monotonic()
        for token, end_s in list(self._ends_s.items()):
            if now_s >= end_s:
                del self._ends_s[token]
                kill_group(self._pids[token])

    def _kill_all(self) -> None:
        """Kill everything that was forked here; in the fork server, all descendants."""
        for pid in self._pids.values():
            kill_group(pid)
        end_s = time.monotonic() + _REAP_TIMEOUT_S
        while self._is_root and time.monotonic() < end_s:
            # Order: killed processes leave their children to us; these are killed and reaped in a later turn.
            for pid in own_children():
                _kill(os.kill, pid)
            try:
                while reaped := os.waitpid(-1, os.WNOHANG)[0]:
                    _kill(os.killpg, reaped)
            except ChildProcessError:
                return
            time.sleep(0.001)

    def _end_without_owner(self, *_: object) -> None:
        # The kernel sends the signal when the thread that started this process exits. Other threads of the trainer may
        # run for another moment; when they exit, the signal comes again.
        if os.getppid() != self._owner_pid:
            self._kill_all()
            os._exit(0)


def _branch(name: str, channel: int, stacks: int, *streams: int, owner_pid: int, program: Any) -> NoReturn:
    """Run as a server like the parent, with everything that it has imported and loaded."""
    from antifreeze.worker import DUMP_SIGNAL

    _write_to(streams)
    _prctl(_PR_SET_NAME, name.encode())
    faulthandler.enable(stacks)
    faulthandler.register(DUMP_SIGNAL, stacks)
    _Server(Channel(socket.socket(fileno=channel)), owner_pid, is_root=False, program=program).run()


def _work(slot: int, channel: int, board: int, stacks: int, *streams: int, program: Any) -> None:
    """Run as a worker; ``program`` is what its parent has loaded, or None."""
    from antifreeze.worker import run

    _write_to(streams)
    _prctl(_PR_SET_NAME, f"af-worker-{slot}".encode())
    gc.enable()
    # The allocator keeps the memory of freed large arrays: getting fresh pages costs more than filling them.
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_NBYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)
    # Sleeps and timeouts are precise. By default the kernel may delay them, to wake several processes at once.
    _prctl(_PR_SET_TIMERSLACK, 1)
    run(Channel(socket.socket(fileno=channel)), HeartbeatWriter(map_bytes(board, HEARTBEAT_NBYTES)), stacks, program)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _write_to(streams: tuple[int, ...]) -> None:
    """Redirect stdout and stderr to the trainer's current ones, which may differ from those at its start."""
    for number, fd in zip((1, 2), streams, strict=False):
        os.dup2(fd, number)
        os.close(fd)
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker may be killed at any moment


def kill_group(pid: int) -> None:
    """Kill a worker and its process group."""
    _kill(os.killpg, pid)
    _kill(os.kill, pid)


def _kill(kill: Callable[[int, int], None], pid: int) -> None:
    # A child that was not reaped keeps its process ID, and the ID of a reaped one stays that of its group while the
    # group has a member. So no other process can be hit.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)
