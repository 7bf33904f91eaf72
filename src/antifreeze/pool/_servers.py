"""The trainer's side of the processes that fork others: how they are started, spoken to, watched and ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antifreeze.core import ConfigError, Deadline, children_of
from antifreeze.diagnosis import Evidence, Finding, StallLimits, find_cause, parse_stack, state_of
from antifreeze.forkserver import Branch, Preload
from antifreeze.ipc import Channel, pair
from antifreeze.pool._failures import never_forked
from antifreeze.pool._process_watch import ServerWatch, read_stacks

_STOPPED_GRACE_S = 1.0
_POLL_INTERVAL_S = 0.005
_MAX_DESCENDANTS = 1 << 12

_ENVIRON = {
    # One thread: only a process with a single thread can be forked without leaving locks behind.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}

_LETTERS = {
    "bytes_warning": "b",
    "debug": "d",
    "dont_write_bytecode": "B",
    "no_site": "S",
    "no_user_site": "s",
    "optimize": "O",
    "quiet": "q",
    "verbose": "v",
}
"""Flags of the interpreter and their options; a flag of 2 is an option that is given twice."""

tokens = itertools.count(1)
"""What processes are known by before they have a process ID."""


class Server:
    """A process that forks others. Used by the supervisor's thread alone."""

    def __init__(self, title: str, channel: Channel, *, pid: int = 0, token: int = 0, stacks: int = -1) -> None:
        self.title, self.channel, self.pid, self.token = title, channel, pid, token
        self.asked: dict[int, int] = {}
        """Processes that it was asked for and that have not ended, with their process IDs; 0 if not known yet."""
        self.num_pending = 0
        """What it was told to import or load and has not answered. If it ends meanwhile, that may be why."""
        self.closed_s: float | None = None
        """When its channel was found closed; it is not known yet how it has ended."""
        self.is_awaited = True
        """Whether no worker can be started before it is done."""
        self._preloaded: set[str] | None = None
        self._stacks = stacks
        self._watch: ServerWatch | None = None
        self._stopped_since_s: float | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.title} (pid {self.pid})" if self.pid else self.title

    def preload(self, modules: tuple[str, ...]) -> None:
        """Have the fork server import libraries. Raises ``Closed`` if it is gone."""
        new = [name for name in modules if self._preloaded is None or name not in self._preloaded]
        if new or self._preloaded is None:
            self._preloaded = {*(self._preloaded or ()), *new}
            self.num_pending += 1
            self.channel.send_nowait(Preload(tuple(new)))

    def ask(self, message: Any, fds: list[int]) -> None:
        """Ask for a process. Raises ``Closed`` if the server is gone; the descriptors are closed in any case."""
        self.asked[message.token] = 0
        self.channel.send_nowait(message, fds)

    def branch(self, title: str, process_name: str, streams: list[int]) -> Server:
        """Fork a server from this one."""
        ours, theirs = pair()
        stacks = os.memfd_create("antifreeze-stacks", os.MFD_CLOEXEC)
        branch = Server(title, Channel(ours), token=next(tokens), stacks=stacks)
        self.ask(Branch(branch.token, process_name), [theirs.detach(), os.dup(stacks), *streams])
        return branch

    # -- watching --------------------------------------------------------------------------------------------------

    def is_stopped(self) -> bool:
        """True if the process has been stopped for a while: nothing that it does holds it up for long."""
        if not self.pid or state_of(self.pid) not in ("T", "t"):
            self._stopped_since_s = None
            return False
        self._stopped_since_s = self._stopped_since_s or time.monotonic()
        return time.monotonic() - self._stopped_since_s > _STOPPED_GRACE_S

    def stall(self, limits: StallLimits) -> Finding | None:
        """Return why the process does not answer, once it has made no progress for too long; warn before that."""
        if not self.pid:
            return None
        if self._watch is None:
            self._watch = ServerWatch(self.pid, self.title, self._stacks, is_awaited=self.is_awaited)
        return self._watch.stall(limits, is_asked=self.num_pending > 0 or 0 in self.asked.values())

    def end_of(self, code: int) -> Finding:
        """Return why the process has ended."""
        if not self.pid and code == os.EX_OSERR:
            return never_forked()
        frames = parse_stack(read_stacks(self._stacks))
        return find_cause(Evidence(pid=self.pid, exit_code=code, stage="load", frames=frames))

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the channel; a branch ends with it. May be called twice."""
        self.channel.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1

    def kill(self) -> None:
        """Kill the process; the kernel ends with it what was forked from it."""
        self.close()
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait_until_gone(self, timeout_s: float) -> None:
        """Wait until the fork server is gone, which is a child of this process."""
        deadline = Deadline.after(timeout_s)
        # Where SIGCHLD is ignored, or another library waits for all children, there is nobody left to wait for.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and not deadline.passed:
                time.sleep(_POLL_INTERVAL_S)


@contextlib.contextmanager
def ending_descendants(pid: int) -> Iterator[None]:
    """Kill after this block what a process had below it before: in the block it is killed, and cannot do so itself.

    By handles of the kernel, so that no process is hit that has one of their numbers later.
    """
    below, handles = [pid], []
    for parent in below:
        below += [child for child in children_of(parent) if len(below) < _MAX_DESCENDANTS]
    for child in below[1:]:
        with contextlib.suppress(OSError, AttributeError):  # it has ended; or the system has no such handles
            handles.append(os.pidfd_open(child))
    try:
        yield
    finally:
        for handle in handles:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def streams() -> list[int]:
    """Return duplicates of the descriptors that this process writes to now, for the receiver."""
    found: list[int] = []
    for fd in (1, 2):
        try:
            found.append(os.dup(fd))
        except OSError:  # it was closed: then the fork server's will do
            break
    return found


def start_server() -> Server:
    """Start the fork server. Call this only in a thread that lives as long as the fork server shall."""
    # A program that was packed with its interpreter would start itself, and that one itself again.
    program = sys.executable or ""
    if not program or (getattr(sys, "frozen", False) and "python" not in Path(program).name):
        what = f"is {program}, a packed program," if program else "is empty,"
        hint = "set sys.executable to the path of a Python interpreter that can import antifreeze"
        raise ConfigError(f"sys.executable {what} so no worker can be started", hint=hint, argument="num_workers")
    ours, theirs = pair()
    package = Path(__file__).parents[1]
    script = package / "forkserver" / "start.py"
    command = [sys.executable, "-P", *_flags(), str(script), str(os.getpid()), str(package.parent)]
    if sys.flags.no_site:
        command += [folder for folder in sys.path if isinstance(folder, str) and folder not in ("", str(script.parent))]
    try:
        # Not subprocess: at exit it would warn of a process that is still there, as this one is meant to be. Ctrl-C in
        # a terminal goes to all processes of its session, so the fork server gets another one.
        pid = os.posix_spawn(
            sys.executable,
            command,
            _environ(),
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
            setsid=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Server("the fork server", Channel(ours), pid=pid)


def _flags() -> list[str]:
    """Return the options that this interpreter was started with.

    Among them are those that keep foreign code out: with ``-I`` or ``-E``, a ``sitecustomize`` that PYTHONPATH leads to
    is not run in the trainer, and must not be run in the fork server.
    """
    # Tried: subprocess._args_from_interpreter_flags, as multiprocessing does. It is private, fails if a library has
    # changed sys.warnoptions, and knows five of the -X options.
    flags = ["-" + letter * getattr(sys.flags, name) for name, letter in _LETTERS.items() if getattr(sys.flags, name)]
    if sys.flags.isolated:
        flags.append("-I")
    # Known limit: with -I or -E, PYTHONHASHSEED has no effect, and only processes of one fork server agree on the
    # order of sets.
    elif sys.flags.ignore_environment:
        flags.append("-E")
    flags += [f"-W{option}" for option in sys.warnoptions]
    options: dict[str, str | bool] = {"utf8": True} if sys.flags.utf8_mode else {}
    options |= {"dev": True} if sys.flags.dev_mode else {}
    for name, value in (options | sys._xoptions).items():
        flags += ["-X", name if value is True else f"{name}={value}"]
    return flags


def _environ() -> dict[str, str]:
    environ = {**os.environ, **_ENVIRON}
    if environ.get("PYTHONHASHSEED", "random") == "random":
        environ["PYTHONHASHSEED"] = "0"  # a worker that takes another's place must see sets in the same order
    return environ
