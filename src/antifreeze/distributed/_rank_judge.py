"""Which rank holds the others up: rules without a clock, a store or a thread.

| a rank that is iterating over a loader ...                                         | is called |
|------------------------------------------------------------------------------------|-----------|
| has sent no new record for its silent limit, by the clock of the reader            | silent    |
| has found the cause for which it waits for a batch                                 | stuck     |
| has waited for a batch for its warning limit, and its workers made no progress     | stuck     |
| has waited for a batch for its silent limit (10 s at least) with active workers    | slow      |
| trains, for however long                                                           | nothing   |

A rank looks for the cause when it has waited for the warning limit, and needs up to half a second for it. The others
give it ``GRACE_S`` before they report it without a cause.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from antifreeze.distributed._record import RankRecord, RankStatus, Seen

GRACE_S = 1.5
"""How much longer than its warning limit a rank may wait before others report it without a cause."""
SLOW_S = 10.0
"""How long a rank with active workers must have waited at least."""
SLOW_AGAIN_S = 300.0
"""A slow rank is reported no more often than this."""
AGAIN_S = 30.0
"""A stall of a rank is reported no sooner than this after its last one: a rank may write what it likes, as often as it
likes, and each record could report another stall."""
_REMEMBERED = 8  # stalls of each rank


class RankProblem(enum.Enum):
    """What is wrong with a rank."""

    STUCK = "stuck"
    SLOW = "slow"
    SILENT = "silent"


class RankVerdict(NamedTuple):
    """A rank that holds others up."""

    kind: RankProblem
    record: RankRecord
    silent_s: float = 0.0
    """For how long it has sent no record."""

    @property
    def key(self) -> tuple[object, ...]:
        """What distinguishes one stall from the next."""
        record = self.record
        if self.kind is RankProblem.SILENT:
            return self.kind, record.rank, record.pid, record.beat
        if record.number:
            return self.kind, record.rank, record.pid, record.number
        return self.kind, record.rank, record.pid, record.epoch, record.step


def judge(seen: Mapping[int, Seen], now_s: float) -> list[RankVerdict]:
    """Return the ranks that hold others up, in order."""
    found = (_judged(seen[rank], now_s) for rank in sorted(seen))
    return [verdict for verdict in found if verdict is not None]


def concerning(verdicts: Iterable[RankVerdict], own: RankStatus) -> list[RankVerdict]:
    """Return those that a rank reports. A slow rank is reported only by ranks that wait for it, not for their own data.

    If all are slow, as when a job starts, none of them holds the others up.
    """
    held_up = not own.waited_s and own.idle_s >= SLOW_S
    return [verdict for verdict in verdicts if verdict.kind is not RankProblem.SLOW or held_up]


def _judged(seen: Seen, now_s: float) -> RankVerdict | None:
    record, silent_s = seen.record, now_s - seen.since_s
    if not record.active:
        return None
    if silent_s >= record.silent_s:
        return RankVerdict(RankProblem.SILENT, record, silent_s)
    if record.number:
        return RankVerdict(RankProblem.STUCK, record)
    if record.waited_s < record.warn_s + GRACE_S:
        return None
    if record.still_s >= record.warn_s:
        return RankVerdict(RankProblem.STUCK, record)
    return RankVerdict(RankProblem.SLOW, record) if record.waited_s >= max(record.silent_s, SLOW_S) else None


class Change(enum.Enum):
    """What has happened to a stall."""

    BEGUN = enum.auto()
    PASSED = enum.auto()
    """It was over before it was reported."""
    OVER = enum.auto()


class RankEvent(NamedTuple):
    """Something to be logged once."""

    change: Change
    verdict: RankVerdict
    now: RankRecord | None = None
    """The rank's record after the stall."""


class Told:
    """What was reported already: each stall is reported once when it begins, and once when it is over.

    At most one stall of each rank is reported in ``AGAIN_S``. One that lasts longer is reported then.
    """

    def __init__(self) -> None:
        self.open: dict[int, RankVerdict] = {}
        """For each rank, the stall that was reported and is not over."""
        self._keys: dict[int, deque[tuple[object, ...]]] = {}
        self._slow_s: dict[int, float] = {}
        self._said_s: dict[int, float] = {}
        """When a stall of each rank was last reported."""

    def news(self, verdicts: Iterable[RankVerdict], records: Mapping[int, RankRecord], now_s: float) -> list[RankEvent]:
        """Return what is new, and remember it. ``records`` are the last ones of all ranks that are known."""
        news = []
        for rank, verdict in list(self.open.items()):
            now = records.get(rank)
            if now is not None and is_over(verdict, now):
                del self.open[rank]
                news.append(RankEvent(Change.OVER, verdict, now))
        for verdict in verdicts:
            if self._is_new(verdict, now_s):
                passed = verdict.record.over and verdict.kind is not RankProblem.SILENT
                news.append(RankEvent(Change.PASSED if passed else Change.BEGUN, verdict))
                if not passed:
                    self.open[verdict.record.rank] = verdict
        return news

    def _is_new(self, verdict: RankVerdict, now_s: float) -> bool:
        rank = verdict.record.rank
        keys = self._keys.setdefault(rank, deque(maxlen=_REMEMBERED))
        if verdict.key in keys or now_s - self._said_s.get(rank, -math.inf) < AGAIN_S:
            return False
        if verdict.kind is RankProblem.SLOW:
            if now_s - self._slow_s.get(rank, -math.inf) < SLOW_AGAIN_S:
                return False
            self._slow_s[rank] = now_s
        keys.append(verdict.key)
        self._said_s[rank] = now_s
        return True


def is_over(verdict: RankVerdict, now: RankRecord) -> bool:
    """True if a later record of the same rank shows that a stall is over."""
    then = verdict.record
    if verdict.kind is RankProblem.SILENT:
        return (now.pid, now.beat) != (then.pid, then.beat)
    if then.number and now.number == then.number:
        return now.over or not now.active
    return (now.pid, now.epoch, now.step) != (then.pid, then.epoch, then.step) or not now.active
