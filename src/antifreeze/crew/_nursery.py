"""The trainer's side of the nursery: how it is started, spoken to, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from antifreeze.child import Hello, Load
from antifreeze.core import ConfigError, Deadline
from antifreeze.crew._modules import sources_of
from antifreeze.supervise import state_of
from antifreeze.transport import Channel, Closed, pair

_STOPPED_S = 1.0
_END_S = 2.0
_LOOK_S = 0.005

_ENVIRON = {
    # One thread: only a process with a single thread can be forked without leaving locks behind.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
}


class Nursery:
    """A nursery that was started. Used by the keeper's thread alone."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid, self.channel = pid, channel
        self.hello: Hello | None = None
        self._stopped_since_s: float | None = None

    def tell(self, message: Any, fds: list[int]) -> None:
        """Send a request. Raises ``Closed`` if the nursery is gone."""
        self.channel.send_nowait(message, fds)

    def is_stopped(self) -> bool:
        """Tell whether the process was stopped. It runs no code of users, so nothing else can hold it up for long."""
        if state_of(self.pid) not in ("T", "t"):
            self._stopped_since_s = None
            return False
        self._stopped_since_s = self._stopped_since_s or time.monotonic()
        return time.monotonic() - self._stopped_since_s > _STOPPED_S

    def end(self) -> None:
        """Kill it and wait until it is gone; the kernel ends its workers with it."""
        self.channel.close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        deadline = Deadline.after(_END_S)
        # Where SIGCHLD is ignored, or another library waits for all children, there is nobody left to wait for.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0) and not deadline.passed:
                time.sleep(_LOOK_S)


def start_nursery(modules: tuple[str, ...]) -> Nursery:
    """Start the process. Call this only in a thread that lives as long as the nursery shall."""
    if not sys.executable:
        hint = "set sys.executable to the path of a Python interpreter that can import antifreeze"
        raise ConfigError("sys.executable is empty, so no worker can be started", hint=hint, argument="num_workers")
    ours, theirs = pair()
    package = Path(__file__).parents[1]
    script = package / "child" / "nursery.py"
    command = [sys.executable, "-P", str(script), str(os.getpid()), str(package.parent)]
    with theirs:
        # Not subprocess: at exit it would warn of a process that is still there, as this one is meant to be. Ctrl-C in
        # a terminal goes to all processes of its session, so the nursery gets one of its own.
        pid = os.posix_spawn(
            sys.executable,
            command,
            _environ(),
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
            setsid=True,
        )
    nursery = Nursery(pid, Channel(ours))
    # Order: first of all. If the process is gone already, who asks it for a worker hears of it.
    with contextlib.suppress(Closed):
        nursery.tell(Load(modules, tuple(source for name in modules for source in sources_of(name))), [])
    return nursery


def _environ() -> dict[str, str]:
    environ = {**os.environ, **_ENVIRON}
    if environ.get("PYTHONHASHSEED", "random") == "random":
        environ["PYTHONHASHSEED"] = "0"  # a worker that takes another's place must see sets in the same order
    return environ
