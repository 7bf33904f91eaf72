"""The processes that fork others: the fork server, and the branches of it that have imported and loaded something.

Problem. A worker needs the libraries of a dataset and the dataset itself. The trainer has both, and must never be
forked: its locks, threads and connections would come along. A fresh interpreter for each worker would import and load
for seconds, in every epoch, and hold a copy of every Python object.

So there is a tree of processes, each with one thread, and each running the loop below:

    trainer ──spawns──▶ fork server            clean: it has imported NumPy, and torch if workers need it
                          └─forks──▶ base       has imported the modules of the dataset, and runs nothing
                                └─forks──▶ template    has loaded the dataset of one loader
                                      ├─forks──▶ workers, in milliseconds; all of it is shared copy-on-write
                                      └─forks──▶ template    has imported what workers have imported since; forks
                                                             the next ones

Guarantees. The fork server never runs user code. A base runs the top level of the user's modules and a template what
unpickling calls, never ``__getitem__``, a transform or a collate function. Neither is forked unless it is safe (see
``_safety``): otherwise workers come from the fork server, and each loads for itself. A process that is killed, stopped
or stuck anywhere in the tree takes its own branches along and nobody else: every process asks the kernel for SIGKILL
when its parent ends. A dataset that was changed between two epochs gets another template, from the same base.

The end. When the trainer ends, the kernel sends SIGCONT to the fork server, which wakes it if it is stopped. It kills
its children; what these had forked and started becomes its children, as it is a subreaper, and is killed next, until
there is none left. When a worker or a branch ends before that, its parent does the same with what it leaves behind
(see ``_orphans``).

# Tried: SIGKILL for the fork server as well. What workers have started is known only here, and survived.
# Tried: loading a changed dataset into the old template. Both would be there, and memory would grow with every epoch.
"""

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
from typing import Any, NoReturn

from antifreeze.core import one_line, own_children, own_descriptors, seconds
from antifreeze.forkserver._fork_safety import why_not_to_fork
from antifreeze.forkserver._orphans import adopt_orphans, kill_process
from antifreeze.forkserver._requests import (
    Branch,
    Exited,
    Preload,
    Preloaded,
    Prepare,
    Prepared,
    Retire,
    Spawn,
    Spawned,
    Terminate,
)
from antifreeze.ipc import HEARTBEAT_NBYTES, Channel, Closed, HeartbeatWriter, map_bytes

LINGER_S = seconds(os.environ.get("ANTIFREEZE_FORKSERVER_LINGER_S", ""), 1.5)
"""How long a server stays when it has nothing to look after: the next loader often comes soon. Tests want it to go."""
_POLL_INTERVAL_S = 0.25
_REAP_TIMEOUT_S = 10.0
"""How long the fork server tries to end what is left when the trainer is gone: a dead disk can keep a process."""
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_TIMERSLACK = 1, 15, 29
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_NBYTES, _KEPT_NBYTES = 32 << 20, 64 << 20


def main(fd: int, owner_pid: int) -> NoReturn:
    """Serve as the fork server until the owner is gone, or until there was nothing to do for a while."""
    server = _Server(Channel(socket.socket(fileno=fd)), owner_pid, is_root=True)
    adopt_orphans()
    end_with_parent(owner_pid, signal.SIGCONT)
    name_process("af-forkserver")
    server.run()


def load(modules: tuple[str, ...]) -> None:
    """Import what workers will need. Imports only: nothing is used, so no thread is left and no lock taken."""
    import_modules((*modules, "antifreeze.worker"))
    gc.freeze()


def import_modules(names: tuple[str, ...]) -> None:
    """Import the modules of a dataset. One that cannot be imported is left to the code that needs it."""
    for name in names:
        with contextlib.suppress(Exception, SystemExit):  # border: the user's modules may do anything
            importlib.import_module(name)


def end_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent ends, even if it is stopped or holds the interpreter's lock.

    With another signal, it is for the handler of that one to end it.

    The signal comes when the parent's *thread* that started this process ends: in the trainer that is the supervisor,
    which lives as long as the fork server; the fork server has one thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


def keep_freed_memory() -> None:
    """Have the allocator keep what large arrays leave behind: asking for fresh pages costs more than filling them."""
    if sys.platform == "linux" and hasattr(_libc := ctypes.CDLL(None), "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_NBYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)


def be_on_time() -> None:
    """Have sleeps and waits with a limit end when they should: the kernel may be late, to wake several at once."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """Give this process a name that people find in ``top``."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class _Server:
    """Forks and reaps. Used by the only thread of its process."""

    def __init__(self, channel: Channel, owner_pid: int, *, is_root: bool, program: Any = None) -> None:
        self._channel, self._owner_pid, self._is_root = channel, owner_pid, is_root
        self._tokens: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._ends_s: dict[int, float] = {}
        self._program = program
        """What was loaded here, or in the process that this one was forked from: the workers' own."""
        self._programs: set[int] = set()
        """What the user's modules have started here while they were imported, or what that has left behind."""
        self._is_retiring = False
        self._idle_since_s = time.monotonic()
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if is_root:
            signal.signal(signal.SIGCONT, self._end_without_owner)
        signal.set_wakeup_fd(self._wake_out)

    def run(self) -> NoReturn:
        """Serve until there is nothing left to do, and end with everything that was forked here."""
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
                self._act(message, fds)
            self._terminate_late()
            self._channel.flush_nowait()

    def _is_done(self) -> bool:
        if self._pids:
            self._idle_since_s = time.monotonic()
            return False
        return self._is_retiring or (self._is_root and time.monotonic() - self._idle_since_s > LINGER_S)

    def _act(self, message: Any, fds: list[int]) -> None:
        if isinstance(message, Preload):
            load(message.modules)
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
        """Import and load what workers need. Code of the user's runs here: what modules and unpickling call."""
        from antifreeze.payload import has_deferred, loading_for_forks, reopened_fds, shared_handles
        from antifreeze.worker import UserError, apply_environment, failure_of, load_program

        before, began_s = own_descriptors(), time.perf_counter()
        for fd in fds:
            before.pop(fd)  # it is closed once the payload was loaded
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
        gc.freeze()  # a collection would write to every object, and so copy every page, in every worker
        self._programs.update(self._strangers())
        unsafe = unsafe or why_not_to_fork(before, shared_handles() | reopened_fds())
        return Prepared(failure, unsafe, time.perf_counter() - began_s)

    # -- forking ---------------------------------------------------------------------------------------------------

    def _fork(self, message: Branch | Spawn, fds: list[int]) -> None:
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no room for another process
            print(f"antifreeze: a worker could not be started: {one_line(error)}", file=sys.stderr)
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
        """Run as what was asked for. A child must never return into its parent's loop."""
        try:
            os.setpgid(0, 0)  # so that what it starts can be ended with it
            end_with_parent(parent)
            adopt_orphans()
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

    # -- the end of others -----------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _kill_programs_of(pid)
            if pid in self._programs:  # it may have left a daemon behind, which is of the same origin
                self._programs.remove(pid)
                self._programs.update(self._strangers())
                continue
            for orphan in self._strangers():
                kill_process(orphan)
            token = self._tokens.pop(pid, None)
            if token is None:
                continue  # an orphan, or the branch of a branch that was killed
            self._pids.pop(token, None)
            self._idle_since_s = time.monotonic()
            self._ends_s.pop(token, None)
            self._channel.send_nowait(Exited(token, pid, os.waitstatus_to_exitcode(status)))

    def _strangers(self) -> list[int]:
        """Return the children that were not forked here."""
        known = self._tokens.keys() | self._programs
        return [pid for pid in own_children() if pid not in known]

    def _terminate_late(self) -> None:
        now_s = time.monotonic()
        for token, end_s in list(self._ends_s.items()):
            if now_s >= end_s:
                del self._ends_s[token]
                kill_group(self._pids[token])

    def _kill_all(self) -> None:
        """End everything that was forked here, and in the fork server, everything that was forked from there."""
        for pid in self._pids.values():
            kill_group(pid)
        end_s = time.monotonic() + _REAP_TIMEOUT_S
        while self._is_root and time.monotonic() < end_s:
            # Order: what is gone leaves its children to us; they are killed and reaped in a later turn.
            for pid in own_children():
                kill_process(pid)
            try:
                while reaped := os.waitpid(-1, os.WNOHANG)[0]:
                    _kill_programs_of(reaped)
            except ChildProcessError:
                return
            time.sleep(0.001)

    def _end_without_owner(self, *_: object) -> None:
        # The signal comes with the end of the thread that has started this process: others of it may live for a moment,
        # and when they end, it comes again.
        if os.getppid() != self._owner_pid:
            self._kill_all()
            os._exit(0)


def _branch(name: str, channel: int, stacks: int, *streams: int, owner_pid: int, program: Any) -> NoReturn:
    """Be a server like the parent, with what that has imported and loaded."""
    from antifreeze.worker import DUMP_SIGNAL

    _write_to(streams)
    name_process(name)
    faulthandler.enable(stacks)
    faulthandler.register(DUMP_SIGNAL, stacks)
    _Server(Channel(socket.socket(fileno=channel)), owner_pid, is_root=False, program=program).run()


def _work(slot: int, channel: int, board: int, stacks: int, *streams: int, program: Any) -> None:
    """Be a worker; ``program`` is what its parent has loaded, if it has."""
    from antifreeze.worker import run

    _write_to(streams)
    name_process(f"af-worker-{slot}")
    gc.enable()
    keep_freed_memory()
    be_on_time()
    run(Channel(socket.socket(fileno=channel)), HeartbeatWriter(map_bytes(board, HEARTBEAT_NBYTES)), stacks, program)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _write_to(streams: tuple[int, ...]) -> None:
    """Write where the trainer writes now: it may have redirected its descriptors since the fork server was started."""
    for number, fd in zip((1, 2), streams, strict=False):
        os.dup2(fd, number)
        os.close(fd)
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a worker may be killed at any moment


def _kill_programs_of(pid: int) -> None:
    """Kill what a process had started that was reaped: its group keeps its number as long as it has a member."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kill a worker and what it has started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
