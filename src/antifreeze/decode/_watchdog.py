"""Runs a function in a thread, and waits for it as long as it makes progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from antifreeze.core import DaemonCall, Stalled
from antifreeze.decode._thread_progress import WAIT, ThreadProgress, describe, location_of
from antifreeze.distributed import RankStatus, watch_ranks

T = TypeVar("T")

_CHECK_INTERVAL_S = 0.5


def stalled(notes: Sequence[ThreadProgress], silent_s: float) -> Stalled:
    """Return the error that names the location of each thread."""
    return Stalled(
        f"no decoder thread has made progress for {silent_s:.1f} s:",
        lines=[describe(note) for note in notes],
        hint="check the file named above: a read that never returns is a dead disk, network mount or object store; "
        "set timeout= to change how long to wait",
        silent_s=silent_s,
    )


class StallTimer:
    """Detects when no thread has made progress for too long."""

    def __init__(self, notes: Sequence[ThreadProgress], limit_s: float) -> None:
        self._notes, self._limit_s = notes, limit_s
        self._moves, self._since_s = -1, time.monotonic()
        self.interval_s = min(_CHECK_INTERVAL_S, limit_s / 4)
        """How long to wait between checks."""

    def check(self) -> None:
        """Raise ``Stalled`` if no thread has made progress for the limit. Waiting for room is not progress."""
        moves = sum(note.moves for note in self._notes if note.stage != WAIT)
        now_s = time.monotonic()
        if moves != self._moves:
            self._moves, self._since_s = moves, now_s
        elif now_s - self._since_s >= self._limit_s:
            raise stalled(self._notes, now_s - self._since_s)


class _BoundedWork:
    """Status of the function for other ranks."""

    def __init__(self, note: ThreadProgress) -> None:
        self._note, self._since_s = note, time.monotonic()

    def status(self) -> RankStatus:
        waited_s = time.monotonic() - self._since_s
        return RankStatus(0, 0, waited_s, waited_s, location_of([self._note]))


def bounded(work: Callable[[ThreadProgress], T], limit_s: float) -> T:
    """Return the result of ``work``, or raise ``Stalled`` if it makes no progress for the limit."""
    note = ThreadProgress("decoder thread")

    def run() -> T:
        note.thread_id = threading.get_ident()
        return work(note)

    call = DaemonCall(run, "antifreeze-first-look")
    timer, watched = StallTimer([note], limit_s), _BoundedWork(note)
    with watch_ranks(watched, _BoundedWork.status):
        while not call.wait(timer.interval_s):
            timer.check()
    call.join(timer.interval_s)
    return call.outcome()
