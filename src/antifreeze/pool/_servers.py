"""The trainer's handle of processes that fork others: starting, messaging, watching and killing them."""

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

from antifreeze.core import ConfigError, Deadline, Lines, children_of, get_logger, one_line
from antifreeze.diagnosis import (
    Evidence,
    Finding,
    find_cause,
    loading_s,
    loading_still_s,
    loading_warn_s,
    parse_stack,
    state_of,
)
from antifreeze.forkserver import Branch, Preload, Prepared
from antifreeze.ipc import Channel, pair
from antifreeze.pool._failures import lines_of, never_forked
from antifreeze.pool._process_watch import ProcessWatch, read_stacks

logger = get_logger()

_STOPPED_GRACE_S = 1.0
_AWAY_GRACE_S = 3.0
"""If a server was not looked at for this long, it is our own process that was suspended."""
_POLL_INTERVAL_S = 0.005
_MAX_DESCENDANTS = 1 << 12

_ENVIRON = {
    # One thread: only a single-threaded process can be forked without leaving locks held in the child.
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
"""Interpreter flags and their command-line options; a flag of 2 is an option given twice."""

tokens = itertools.count(1)
"""Identifiers for processes that have no process ID yet."""


class Server:
    """A process that forks others. Used by the supervisor's thread alone."""

    def __init__(self, title: str, channel: Channel, *, pid: int = 0, token: int = 0, stacks: int = -1) -> None:
        self.title, self.channel, self.pid, self.token = title, channel, pid, token
        self.asked: dict[int, int] = {}
        """Requested processes that have not exited, with their process IDs; 0 if not known yet."""
        self.num_pending = 0
        """Number of unanswered requests to import or load. If it exits meanwhile, they may be the cause."""
        self.prepared: Prepared | None = None
        """What it has answered after it imported or loaded."""
        self.closed_s: float | None = None
        """When its channel was found closed; its exit code is not known yet."""
        self.is_awaited = True
        """Whether workers have to wait for it."""
        self.num_extra, self.began_s = 0, 0.0
        """How many of a template's extra modules it has imported or is importing, and since when."""
        self._preloaded: set[str] | None = None
        self._stacks = stacks
        self._runs_user_code = stacks >= 0
        self._watch: ProcessWatch | None = None
        self._stopped_since_s: float | None = None

    @property
    def name(self) -> str:
        """Name of the process in messages."""
        return f"{self.title} (pid {self.pid})" if self.pid else self.title

    def preload(self, modules: tuple[str, ...]) -> None:
        """Make the fork server import libraries. Raises ``Closed`` if it is gone."""
        new = [name for name in modules if self._preloaded is None or name not in self._preloaded]
        if new or self._preloaded is None:
            self._preloaded = {*(self._preloaded or ()), *new}
            self.num_pending += 1
            self.channel.send_nowait(Preload(tuple(new)))

    def ask(self, message: Any, fds: list[int]) -> None:
        """Request a process. Raises ``Closed`` if the server is gone; the descriptors are closed in any case."""
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
        """True if the process has been stopped (SIGSTOP) for longer than the grace period."""
        if not self.pid or state_of(self.pid) not in ("T", "t"):
            self._stopped_since_s = None
            return False
        self._stopped_since_s = self._stopped_since_s or time.monotonic()
        return time.monotonic() - self._stopped_since_s > _STOPPED_GRACE_S

    def stall(self, limit_s: float | None) -> Finding | None:
        """Return why it does not answer, once it has made no progress for too long; warn before that.

        It is judged while something is asked of it. It only imports and loads; what it has forked says nothing about
        it, unless it runs user code.
        """
        if not self.pid or not (self.num_pending > 0 or 0 in self.asked.values()):
            self._watch = None
            return None
        now_s, watch = time.monotonic(), self._watch
        if watch is None or now_s - watch.at_s > _AWAY_GRACE_S:
            self._watch = ProcessWatch(self.pid, self._stacks, with_children=self._runs_user_code)
            return None
        watch.observe(now_s)
        still_s, asked_s = now_s - watch.moved_s, now_s - watch.since_s
        is_stuck = still_s > loading_still_s(limit_s, runs_user_code=self._runs_user_code) or asked_s > loading_s(
            limit_s
        )
        if not is_stuck and (watch.warnings or still_s <= loading_warn_s(limit_s)):
            return None
        finding = watch.find_cause("load")
        what = f"{self.name} has not answered for {asked_s:.0f} s"
        what += f" and has made no progress for {still_s:.0f} s" if still_s >= 1 else ""
        if self.is_awaited:
            then = "it is replaced" if is_stuck else "no worker can be started"
        else:
            then = "it is ended" if is_stuck else "workers are started without it"
        rest = Lines("" if watch.warnings else f"{lines_of(finding)}\n  hint: {one_line(finding.hint)}")
        logger.warning("antifreeze: %s: it %s; %s%s", what, finding.title, then, rest)
        watch.warnings += 1
        return finding if is_stuck else None

    def end_of(self, code: int) -> Finding:
        """Return why the process exited."""
        if not self.pid and code == os.EX_OSERR:
            return never_forked()
        frames = parse_stack(read_stacks(self._stacks))
        return find_cause(Evidence(pid=self.pid, exit_code=code, stage="load", frames=frames))

    # -- shutdown --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the channel, which ends a branch. May be called twice."""
        self.channel.close()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1

    def kill(self) -> None:
        """Kill the process; the kernel kills everything that was forked from it."""
        self.close()
        if self.pid:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait_until_gone(self, timeout_s: float) -> None:
        """Reap the fork server, a child of this process, within ``timeout_s``."""
        deadline = Deadline.after(timeout_s)
        # If SIGCHLD is ignored, or another library reaps all children, there is nothing left to wait for.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and not deadline.passed:
                time.sleep(_POLL_INTERVAL_S)


@contextlib.contextmanager
def ending_descendants(pid: int) -> Iterator[None]:
    """Kill the descendants that a process has now after this block, which kills the process itself.

    By pidfd, so that no unrelated process that reuses a process ID is hit.
    """
    below, handles = [pid], []
    for parent in below:
        below += [child for child in children_of(parent) if len(below) < _MAX_DESCENDANTS]
    for child in below[1:]:
        with contextlib.suppress(OSError, AttributeError):  # it has exited, or the system has no pidfds
            handles.append(os.pidfd_open(child))
    try:
        yield
    finally:
        for handle in handles:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def streams() -> list[int]:
    """Return duplicates of the current stdout and stderr, owned by the receiver."""
    found: list[int] = []
    for fd in (1, 2):
        try:
            found.append(os.dup(fd))
        except OSError:  # closed: the fork server's is used instead
            break
    return found


def start_server() -> Server:
    """Start the fork server. The calling thread must live as long as the fork server should."""
    # A program bundled with its interpreter would start itself recursively.
    program = sys.executable or ""
    if not program or (getattr(sys, "frozen", False) and "python" not in Path(program).name):
        found = f"{program}, a bundled program" if program else "an empty string"
        hint = "set sys.executable to the path of a Python interpreter that can import antifreeze"
        problem = f"cannot start workers: expected sys.executable to be a Python interpreter, got {found}"
        raise ConfigError(problem, hint=hint, argument="num_workers")
    ours, theirs = pair()
    package = Path(__file__).parents[1]
    script = package / "forkserver" / "start.py"
    command = [sys.executable, "-P", *_flags(), str(script), str(os.getpid()), str(package.parent)]
    if sys.flags.no_site:
        command += [folder for folder in sys.path if isinstance(folder, str) and folder not in ("", str(script.parent))]
    try:
        # Not subprocess: it would warn at exit about a process that is still running, which is intended here. Ctrl-C
        # in a terminal signals the whole session, so the fork server gets its own session.
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

    They include options that keep foreign code out: with ``-I`` or ``-E``, a ``sitecustomize`` on PYTHONPATH is not run
    in the trainer, and must not be run in the fork server.
    """
    # Tried: subprocess._args_from_interpreter_flags, as multiprocessing does. It is private, fails if a library has
    # changed sys.warnoptions, and covers only five of the -X options.
    flags = ["-" + letter * getattr(sys.flags, name) for name, letter in _LETTERS.items() if getattr(sys.flags, name)]
    if sys.flags.isolated:
        flags.append("-I")
    # Known limitation: with -I or -E, PYTHONHASHSEED has no effect, and only processes of one fork server iterate
    # over sets in the same order.
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
        environ["PYTHONHASHSEED"] = "0"  # a replacement worker must iterate over sets in the same order
    return environ
