"""Which rank holds the others up: rules without a clock, a store or a thread.

| a rank that is iterating over a loader ...                                         | is called |
|------------------------------------------------------------------------------------|-----------|
| has sent no new record for its silent limit, by the clock of who looks             | silent    |
| has found out by itself why it waits for a batch                                   | stuck     |
| has waited for a batch for its warning limit, and its workers did not move         | stuck     |
| has waited for a batch for its silent limit (10 s at least), and its workers moved | slow      |
| trains, for however long                                                           | nothing   |

A rank finds out by itself when it has waited for the warning limit, and needs up to half a second for it. Whoever looks
gives it ``GRACE_S`` before it speaks without a cause.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from antifreeze.distributed._record import RankRecord, RankStatus

GRACE_S = 1.5
"""How much longer than its warning limit a rank may wait before others speak without knowing the cause."""
SLOW_S = 10.0
"""How long a rank whose workers move must have waited at least."""
SLOW_AGAIN_S = 300.0
"""A rank that is slow is spoken of no more often than this."""
AGAIN_S = 30.0
"""A stall of a rank is spoken of no sooner than this after the last one: a rank may write what it likes, as often as it
likes, and each record could tell of another stall."""
_REMEMBERED = 8  # stalls of each rank


class RankProblem(enum.Enum):
    """What is wrong with a rank."""

    STUCK = "stuck"
    SLOW = "slow"
    SILENT = "silent"


class Seen(NamedTuple):
    """A rank's last record, and since when it has been the last one, by our clock."""

    record: RankRecord
    since_s: float


class RankVerdict(NamedTuple):
    """A rank that holds others up."""

    kind: RankProblem
    record: RankRecord
    silent_s: float = 0.0
    """How long nothing has been heard of it."""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells one stall from the next."""
        record = self.record
        if self.kind is RankProblem.SILENT:
            return self.kind, record.rank, record.pid, record.beat
        if record.number:
            return self.kind, record.rank, record.pid, record.number
        return self.kind, record.rank, record.pid, record.epoch, record.step


def judge(seen: Mapping[int, Seen], now_s: float) -> list[RankVerdict]:
    """Return what is wrong with whom, in the order of ranks."""
    found = (_judged(seen[rank], now_s) for rank in sorted(seen))
    return [verdict for verdict in found if verdict is not None]


def concerning(verdicts: Iterable[RankVerdict], own: RankStatus) -> list[RankVerdict]:
    """Return those that a rank speaks of. Of one that is slow, only who has to wait for it, and not for its own data.

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
    """What there is to say of a stall."""

    BEGUN = enum.auto()
    PASSED = enum.auto()
    """It was over before it was heard of."""
    OVER = enum.auto()


class RankEvent(NamedTuple):
    """Something to be said once."""

    change: Change
    verdict: RankVerdict
    now: RankRecord | None = None
    """The rank's record after the stall."""


class Told:
    """What was said already: each stall is spoken of once when it begins, and once when it is over.

    Of one rank at most one stall is spoken of in ``AGAIN_S``. One that is still there after that is spoken of then.
    """

    def __init__(self) -> None:
        self.open: dict[int, RankVerdict] = {}
        """For each rank the stall that was spoken of and is not over."""
        self._keys: dict[int, deque[tuple[object, ...]]] = {}
        self._slow_s: dict[int, float] = {}
        self._said_s: dict[int, float] = {}
        """When a stall of each rank was last spoken of."""

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
    """Tell from a later record of the same rank whether a stall is over. Pure."""
    then = verdict.record
    if verdict.kind is RankProblem.SILENT:
        return (now.pid, now.beat) != (then.pid, then.beat)
    if then.number and now.number == then.number:
        return now.over or not now.active
    return (now.pid, now.epoch, now.step) != (then.pid, then.epoch, then.step) or not now.active
