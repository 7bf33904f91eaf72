"""The stall that a loader was last warned of, kept for a while so that other ranks can hear of it."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from antifreeze.diagnosis import Finding
from antifreeze.distributed import Location, Trouble
from antifreeze.ipc import Heartbeat
from antifreeze.pool._history import History
from antifreeze.pool._worker_handle import WorkerHandle

_OVER_S = 5.0
_numbers = itertools.count(1)


@dataclass(slots=True)
class _Stall:
    token: int
    since_s: float
    trouble: Trouble
    batches: int
    """How many had been delivered."""
    over_s: float | None = None


class Stalls:
    """Written with the pool's lock held; read by another thread, without it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._last: _Stall | None = None

    def note(self, worker: WorkerHandle, record: Heartbeat, place: Location, finding: Finding) -> None:
        """Remember a worker that the trainer waits for. What is known of a stall grows while it lasts."""
        last, which = self._last, (worker.token, record.since_s)
        known = last is not None and which == (last.token, last.since_s)
        number = last.trouble.number if last is not None and known else next(_numbers)
        line = "" if finding.frame is None else str(finding.frame)
        trouble = Trouble(number, place._replace(line=line), finding.cause.value, finding.title)
        self._last = _Stall(*which, trouble, self._history.batches)

    def last(self) -> Trouble | None:
        """Return the last stall, until it has been over for a while: a batch was delivered since."""
        stall, now_s = self._last, time.monotonic()
        if stall is None:
            return None
        if self._history.batches > stall.batches:
            stall.over_s = now_s if stall.over_s is None else stall.over_s
            stall.trouble = stall.trouble._replace(over=True)
        return stall.trouble if stall.over_s is None or now_s - stall.over_s < _OVER_S else None
