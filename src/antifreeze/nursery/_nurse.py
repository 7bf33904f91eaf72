"""The nursery: a clean, single-threaded process that does nothing but fork workers and bury them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

from antifreeze.nursery._ahead import Sources, read_ahead
from antifreeze.transport import BOARD_NBYTES, BoardWriter, Channel, Closed, map_bytes

LINGER_S = float(os.environ.get("ANTIFREEZE_NURSERY_LINGER_S", "1.5"))
"""How long the nursery stays when it has no worker: the next epoch often begins at once. Tests want it to go."""
_LOOK_S = 0.25
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_TIMERSLACK = 1, 15, 29
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_NBYTES, _KEPT_NBYTES = 32 << 20, 64 << 20


class Load(NamedTuple):
    """Trainer to nursery: import what workers will need, and say hello. Comes before them."""

    modules: tuple[str, ...]
    sources: Sources


class Bear(NamedTuple):
    """Trainer to nursery: fork a worker. Its channel, board and stack file come with it."""

    token: int
    slot: int


class Bury(NamedTuple):
    """Trainer to nursery: end a worker, at once or when its grace is over."""

    token: int
    grace_s: float


class Hello(NamedTuple):
    """Nursery to trainer: it has imported what it was told to."""


class Born(NamedTuple):
    """Nursery to trainer: the worker's process."""

    token: int
    pid: int


class Died(NamedTuple):
    """Nursery to trainer: a worker's end. Negative codes are signals, as everywhere in Python."""

    token: int
    pid: int
    code: int


def main(fd: int, owner_pid: int) -> NoReturn:
    """Serve until the owner is gone, or until nothing was to be done for a while."""
    nurse = _Nurse(Channel(socket.socket(fileno=fd)), owner_pid)
    # Not SIGKILL: what workers have started is known only here, and must be ended too. This one wakes who is stopped.
    end_with_parent(owner_pid, signal.SIGCONT)
    name_process("af-nursery")
    with contextlib.suppress(Closed):
        nurse.serve()
    nurse.kill_all()
    os._exit(0)


def load(modules: tuple[str, ...], sources: Sources) -> None:
    """Import what workers will need. Imports only: nothing is used, so no thread is left and no lock taken."""
    for module in modules:
        with contextlib.suppress(ImportError), read_ahead(module, sources):
            importlib.import_module(module)
    importlib.import_module("antifreeze.child")
    gc.freeze()


def end_with_parent(parent_pid: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent ends, even if it is stopped or holds the interpreter's lock.

    With another signal, it is for the handler of that one to end it.

    The signal comes when the parent's *thread* ends that has started this process: in the trainer that is the keeper,
    which lives as long as the nursery; the nursery has one thread.
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


class _Nurse:
    def __init__(self, channel: Channel, owner_pid: int) -> None:
        self._channel, self._owner_pid = channel, owner_pid
        self._tokens: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._ends_s: dict[int, float] = {}
        self._idle_since_s = time.monotonic()
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGCONT, self._end_without_owner)
        signal.set_wakeup_fd(self._wake_out)

    def serve(self) -> None:
        """Fork and bury until there is nothing left to do."""
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN)
        poll.register(self._wake_in, select.POLLIN)
        while not self._is_done():
            poll.poll(_LOOK_S * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_in, 4096)
            self._bury_the_dead()
            for message, fds in self._channel.receive_nowait():
                self._act(message, fds)
            self._end_the_late()
            self._channel.flush_nowait()

    def _is_done(self) -> bool:
        if self._pids:
            self._idle_since_s = time.monotonic()
        return time.monotonic() - self._idle_since_s > LINGER_S

    def _act(self, message: Any, fds: list[int]) -> None:
        if isinstance(message, Load):
            load(message.modules, message.sources)
            self._idle_since_s = time.monotonic()
            self._channel.send_nowait(Hello())
        elif isinstance(message, Bear):
            try:
                pid = self._bear(message, fds)
            except OSError as error:  # no room for another process
                print(f"antifreeze: a worker could not be started: {error}", file=sys.stderr)
                self._channel.send_nowait(Died(message.token, 0, os.EX_OSERR))
                return
            finally:
                for fd in fds:
                    os.close(fd)
            self._tokens[pid], self._pids[message.token] = message.token, pid
            self._channel.send_nowait(Born(message.token, pid))
        elif isinstance(message, Bury) and message.token in self._pids:
            self._ends_s[message.token] = time.monotonic() + message.grace_s

    def _bear(self, message: Bear, fds: list[int]) -> int:
        nursery = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            from antifreeze.child import run

            os.setpgid(0, 0)  # so that what a worker starts can be ended with it
            end_with_parent(nursery)
            name_process(f"af-worker-{message.slot}")
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGCONT):
                signal.signal(number, signal.SIG_DFL)
            self._channel.close()
            os.close(self._wake_in)
            os.close(self._wake_out)
            gc.enable()
            keep_freed_memory()
            be_on_time()
            channel, board, stacks = fds
            memory = map_bytes(board, BOARD_NBYTES)
            run(Channel(socket.socket(fileno=channel)), BoardWriter(memory), stacks)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
        except BaseException:  # noqa: BLE001  border: a worker must never return into the nursery's loop
            import traceback

            traceback.print_exc()
            os._exit(70)
        os._exit(0)

    def _bury_the_dead(self) -> None:
        while self._tokens:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            token = self._tokens.pop(pid, None)
            if token is None:
                continue
            self._pids.pop(token, None)
            self._idle_since_s = time.monotonic()
            self._ends_s.pop(token, None)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what it had started
            self._channel.send_nowait(Died(token, pid, os.waitstatus_to_exitcode(status)))

    def _end_the_late(self) -> None:
        now_s = time.monotonic()
        for token, end_s in list(self._ends_s.items()):
            if now_s >= end_s:
                del self._ends_s[token]
                kill_group(self._pids[token])

    def kill_all(self) -> None:
        """End every worker."""
        for pid in self._pids.values():
            kill_group(pid)

    def _end_without_owner(self, *_: object) -> None:
        # The signal comes with the end of the thread that has started this process: others of it may live for a moment,
        # and when they end, it comes again.
        if os.getppid() != self._owner_pid:
            self.kill_all()
            os._exit(0)


def kill_group(pid: int) -> None:
    """Kill a worker and what it has started."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
