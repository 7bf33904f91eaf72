"""The trainer's side of the nursery: how it is started, spoken to, and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from antifreeze.core import ConfigError, Deadline
from antifreeze.crew._bedside import Bedside
from antifreeze.crew._modules import sources_of
from antifreeze.nursery import Load
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
        self.num_loads = 0
        """What it was told to import and has not said hello after. If it ends meanwhile, that may be why."""
        self.bedside = Bedside(pid)
        self._told: set[str] | None = None
        self._stopped_since_s: float | None = None

    def tell(self, message: Any, fds: list[int], modules: tuple[str, ...] = ()) -> None:
        """Send a request, and before it what has to be imported first. Raises ``Closed`` if the nursery is gone."""
        new = [name for name in modules if self._told is None or name not in self._told]
        if new or self._told is None:
            self._told = {*(self._told or ()), *new}
            self.num_loads += 1
            with contextlib.suppress(Closed):  # Order: the request says so, and closes its descriptors
                self.channel.send_nowait(Load(tuple(new), tuple(source for name in new for source in sources_of(name))))
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


def start_nursery() -> Nursery:
    """Start the process. Call this only in a thread that lives as long as the nursery shall."""
    # A program that was packed with its interpreter would start itself, and that one itself again.
    program = sys.executable or ""
    if not program or (getattr(sys, "frozen", False) and "python" not in Path(program).name):
        what = f"is {program}, a packed program," if program else "is empty,"
        hint = "set sys.executable to the path of a Python interpreter that can import antifreeze"
        raise ConfigError(f"sys.executable {what} so no worker can be started", hint=hint, argument="num_workers")
    ours, theirs = pair()
    package = Path(__file__).parents[1]
    script = package / "nursery" / "start.py"
    command = [sys.executable, "-P", *_flags(), str(script), str(os.getpid()), str(package.parent)]
    try:
        # Not subprocess: at exit it would warn of a process that is still there, as this one is meant to be. Ctrl-C in
        # a terminal goes to all processes of its session, so the nursery gets one of its own.
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
    return Nursery(pid, Channel(ours))


def _flags() -> list[str]:
    """Return options of the interpreter that change what user code does."""
    flags = [f"-W{option}" for option in sys.warnoptions]
    if sys.flags.optimize:
        flags.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dont_write_bytecode:
        flags.append("-B")
    return [*flags, "-X", "utf8"] if sys.flags.utf8_mode else flags


def _environ() -> dict[str, str]:
    environ = {**os.environ, **_ENVIRON}
    if environ.get("PYTHONHASHSEED", "random") == "random":
        environ["PYTHONHASHSEED"] = "0"  # a worker that takes another's place must see sets in the same order
    return environ
