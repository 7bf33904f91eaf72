"""The worker processes of a trainer as they are seen in /proc, and what can be done to them from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 30.0
"""For what must come: no test depends on the machine being fast."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain until {what}"
        time.sleep(0.002)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # it has just ended
        return ""


def _children(pid: int) -> list[int]:
    return [int(child) for thread in threads_of(pid) for child in _text(f"/proc/{pid}/task/{thread}/children").split()]


def _is_named(pid: int, name: str) -> bool:
    return _text(f"/proc/{pid}/comm").startswith(name) and state_of(pid) not in ("Z", "X", "")


def state_of(pid: int) -> str:
    """Return the letter of a process's state; nothing if it is gone."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def threads_of(pid: int) -> list[str]:
    """Return the threads of a process; none if it is gone."""
    try:
        return [thread.name for thread in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def identity(pid: int) -> tuple[int, str]:
    """Return what tells a process from a later one with the same number: when it was started."""
    return pid, (_text(f"/proc/{pid}/stat").rpartition(")")[2].split() or [""] * 20)[19]


def lives(process: tuple[int, str]) -> bool:
    """Tell whether a process still runs."""
    return identity(process[0]) == process and state_of(process[0]) not in ("Z", "X", "")


def awaits_signals(pid: int) -> bool:
    """Tell whether a process has been sent a signal that none of its threads has taken."""
    return any(int(line.split()[1], 16) for line in _text(f"/proc/{pid}/status").splitlines() if line[:7] == "ShdPnd:")


def nurseries(trainer: int | None = None) -> list[int]:
    """Return the nurseries of a trainer, by default of this process."""
    return [pid for pid in _children(trainer or os.getpid()) if _is_named(pid, "af-forkserver")]


def _descendants(pid: int) -> list[int]:
    """Return what a process has started, and what that has started; what a worker starts is its own."""
    if _is_named(pid, "af-worker"):
        return []
    return [found for child in _children(pid) for found in (child, *_descendants(child))]


def _named(name: str, trainer: int | None) -> list[int]:
    return [pid for server in nurseries(trainer) for pid in _descendants(server) if _is_named(pid, name)]


def workers(trainer: int | None = None) -> list[int]:
    """Return the worker processes of a trainer, by default of this process."""
    return _named("af-worker", trainer)


def templates(trainer: int | None = None) -> list[int]:
    """Return the processes that have loaded the dataset of a loader."""
    return _named("af-template", trainer)


def bases(trainer: int | None = None) -> list[int]:
    """Return the processes that have imported modules, and of which templates are forked."""
    return _named("af-modules", trainer)


def programs(trainer: int | None = None) -> list[int]:
    """Return what the workers of a trainer have started."""
    return [pid for worker in workers(trainer) for pid in _children(worker)]


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to processes that may have ended in the meantime."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
