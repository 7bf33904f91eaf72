"""One piece of work in a thread, waited for as long as it moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from antifreeze.core import DaemonCall, Stalled
from antifreeze.decode._thread_progress import WAIT, ThreadProgress, describe, location_of
from antifreeze.distributed import RankStatus, watch_ranks

T = TypeVar("T")

_LOOK_S = 0.5


def stalled(notes: Sequence[ThreadProgress], silent_s: float) -> Stalled:
    """Return the error that names what each thread stands at."""
    return Stalled(
        f"no decoder thread has moved for {silent_s:.1f} s:",
        lines=[describe(note) for note in notes],
        hint="a read that never returns is a dead disk, network mount or object store: check the file named above; "
        "timeout= sets how long to wait",
        silent_s=silent_s,
    )


class StallTimer:
    """Tells when nothing has moved for too long."""

    def __init__(self, notes: Sequence[ThreadProgress], limit_s: float) -> None:
        self._notes, self._limit_s = notes, limit_s
        self._moves, self._since_s = -1, time.monotonic()
        self.look_s = min(_LOOK_S, limit_s / 4)
        """How long to wait at a time."""

    def check(self) -> None:
        """Raise ``Stalled`` if no thread has moved for the limit. Waiting for room is not moving."""
        moves = sum(note.moves for note in self._notes if note.stage != WAIT)
        now_s = time.monotonic()
        if moves != self._moves:
            self._moves, self._since_s = moves, now_s
        elif now_s - self._since_s >= self._limit_s:
            raise stalled(self._notes, now_s - self._since_s)


class _FirstLook:
    """A piece of work, as other ranks see it."""

    def __init__(self, note: ThreadProgress) -> None:
        self._note, self._since_s = note, time.monotonic()

    def standing(self) -> RankStatus:
        waited_s = time.monotonic() - self._since_s
        return RankStatus(0, 0, waited_s, waited_s, location_of([self._note]))


def bounded(work: Callable[[ThreadProgress], T], limit_s: float) -> T:
    """Return what ``work`` returns, or raise ``Stalled`` when it has not moved for the limit."""
    note = ThreadProgress("decoder thread")

    def run() -> T:
        note.thread_id = threading.get_ident()
        return work(note)

    call = DaemonCall(run, "antifreeze-first-look")
    patience, look = StallTimer([note], limit_s), _FirstLook(note)
    with watch_ranks(look, _FirstLook.standing):
        while not call.wait(patience.look_s):
            patience.check()
    call.join(patience.look_s)
    return call.outcome()
