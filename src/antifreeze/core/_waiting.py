"""Waiting: until a moment, never for a duration; for whom; and for one call in a daemon thread that may never return.

Problem. A read from a network mount that is gone, or a request to a process that is stopped, takes as long as it likes,
and nothing in Python can end it. A caller that needs its result must be able to wait for a limited time, report what is
stuck, and leave.

Guarantees:

- ``wait`` returns by its timeout, whatever the call does.
- What the call raises is raised by ``outcome``, in the thread that asks for it.
- A call that hangs keeps neither its caller nor the interpreter from ending.

Assumption: the call holds no lock that others need. If it hangs, it holds what it has forever.

# Tried: concurrent.futures.ThreadPoolExecutor. The interpreter joins its threads when it exits, and so hangs with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment after which waiting is an error.

    A timeout that is passed down a call chain restarts at every level; a moment can be passed on unchanged.
    """

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment that lies this many seconds ahead."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds left; never negative, so that it can be given to any ``timeout=``."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.left_s == 0.0


@dataclass(frozen=True, slots=True)
class Location:
    """What a loader waits for, as messages name it."""

    worker: str = ""
    """Who: ``worker 1 (pid 99)``, ``decoder thread 0``."""
    stage: str = ""
    what: str = ""
    """The file, the row, the sample."""
    still_s: float = 0.0
    """For how long it has made no progress."""
    line: str = ""
    """The line of Python that it is on, if that is known."""


class DaemonCall(Generic[T]):
    """Runs ``work`` in a daemon thread called ``name``, beginning now."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._since_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """True once the call has returned or raised."""
        return self._done.is_set()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self._since_s

    def wait(self, timeout_s: float) -> bool:
        """Wait until the call has returned or raised; return False if it has not by then."""
        return self._done.wait(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread itself has ended, which is a moment after the call is done."""
        self._thread.join(timeout_s)

    def outcome(self) -> T:
        """Return what the call returned, or raise what it raised. Only for a call that is done."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._results.append(work())
        except BaseException as error:  # noqa: BLE001  border: it is raised again by ``outcome``
            self._error = error
        self._done.set()
