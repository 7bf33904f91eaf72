"""Which rank holds the others up, and what is logged about it: rules without a clock, a store or a thread.

| a rank that is iterating over a loader ...                                         | is called |
|------------------------------------------------------------------------------------|-----------|
| has sent no new record for its silent limit, by the clock of the reader            | silent    |
| has found the cause for which it waits for a batch                                 | stuck     |
| has waited for a batch for its warning limit, and its workers made no progress     | stuck     |
| has waited for a batch for its silent limit (10 s at least) with active workers    | slow      |
| trains, for however long                                                           | nothing   |

A rank looks for the cause when it has waited for the warning limit, and needs up to half a second for it. The others
give it ``GRACE_S`` before they report it without a cause.

If the file system is down, all ranks stall, and each reads about all others. So a few ranks are reported in detail, and
the rest in one line.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from antifreeze.core import Lines, one_line
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


# -- messages --------------------------------------------------------------------------------------------------------

IN_FULL = 3
"""Number of stalled ranks reported in detail; the rest are summarised in one line."""
REST_S = 2.0
"""How long the others are collected, to share a line."""
_SHOWN = 16
_REST = {
    (Change.BEGUN, RankProblem.STUCK): "are stalled, too",
    (Change.BEGUN, RankProblem.SLOW): "wait for data, too",
    (Change.BEGUN, RankProblem.SILENT): "are silent, too",
    (Change.PASSED, RankProblem.STUCK): "were stalled, too, and have recovered",
    (Change.OVER, RankProblem.STUCK): "recovered, too",
    (Change.OVER, RankProblem.SLOW): "recovered, too",
    (Change.OVER, RankProblem.SILENT): "respond again, too",
}
_STATES = {
    "T": ("its process is stopped (SIGSTOP)", "`kill -CONT {pid}` on {host} resumes it"),
    "t": ("a debugger holds its process", "resume it or detach, on {host}: process {pid}"),
    "D": (
        "its process waits for a disk or a network file system that does not answer",
        "look at `dmesg` and at the mounts of {host}",
    ),
    "gone": ("its process has ended", "its last messages are in the log of rank {rank}"),
}
_RUNS = (
    "its process is alive but runs no Python thread: native code holds the interpreter's lock",
    "`py-spy dump --native --pid {pid}` on {host} shows the line that it is on",
)
_UNKNOWN = (
    "its process is stopped, native code holds its interpreter's lock, or its machine cannot be reached",
    "on {host}: `grep State /proc/{pid}/status`, then `py-spy dump --native --pid {pid}`",
)


class LogThrottle:
    """Decides which events are logged in full, and which together."""

    def __init__(self) -> None:
        self._until_s: dict[int, float] = {}
        """The ranks that are reported in full, until when: while they are stalled, or a moment if they are not."""
        self._rest: list[RankEvent] = []
        self._since_s = 0.0

    def in_full(self, events: list[RankEvent], now_s: float) -> list[RankEvent]:
        """Return the events to be logged in full now; the others are kept for ``rest``."""
        full = []
        self._until_s = {rank: until_s for rank, until_s in self._until_s.items() if until_s > now_s}
        for event in events:
            rank = event.verdict.record.rank
            if rank in self._until_s or (len(self._until_s) < IN_FULL and event.change is not Change.OVER):
                self._until_s[rank] = math.inf if event.change is Change.BEGUN else now_s + REST_S
                full.append(event)
            else:
                self._since_s = self._since_s if self._rest else now_s
                self._rest.append(event)
        return full

    def rest(self, now_s: float) -> str:
        """Return one line for all that were kept, once they have waited for each other; else nothing."""
        if not self._rest or now_s - self._since_s < REST_S:
            return ""
        rest, self._rest = self._rest, []
        return say_rest(rest)


def say_rest(rest: list[RankEvent]) -> str:
    """Return one line about many ranks."""
    parts = []
    for what in dict.fromkeys(_REST.values()):
        ranks = sorted({n.verdict.record.rank for n in rest if _REST.get((n.change, n.verdict.kind)) == what})
        shown = ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
        parts += [f"ranks {shown} ({len(ranks)}) {what}"] * bool(ranks)
    return f"antifreeze: {'; '.join(parts)}"


def say(
    event: RankEvent, *, rank: int, world_size: int, idle_s: float, state: str | None = None, store: str = ""
) -> Lines:
    """Return the text of a warning on rank ``rank``, which has taken no batch for ``idle_s``.

    ``state`` is the letter of the process that the event is about, ``gone``, or None where it cannot be seen; ``store``
    the address of the job's store, if it is the store that does not answer.
    """
    now = None if event.now is None else _clean(event.now)
    event = event._replace(verdict=event.verdict._replace(record=_clean(event.verdict.record)), now=now)
    return Lines(_said(event, rank, world_size, idle_s, state, one_line(store)))


def say_store(where: str, silent_s: float, *, idle_s: float) -> str:
    """Return the text of a warning about a store that does not answer, and that no rank holds."""
    return (
        f"antifreeze: the job's store ({where}) has not answered for {silent_s:.1f} s: torchrun's agent, which holds "
        f"it, is stopped, or its machine cannot be reached; this rank has taken no batch for {idle_s:.1f} s"
    )


def _said(event: RankEvent, rank: int, world_size: int, idle_s: float, state: str | None, store: str) -> str:
    then = event.verdict.record
    who = _who(then, rank, world_size)
    if event.change is Change.OVER:
        what = "responds again" if event.verdict.kind is RankProblem.SILENT else "recovered"
        return f"antifreeze: {who} {what} ({_at(event.now or then)})"
    ours = "" if then.rank == rank else f"; this rank ({rank}) has taken no batch for {idle_s:.1f} s"
    if event.verdict.kind is RankProblem.SILENT:
        return _silent(event.verdict, who, ours, state, store)
    if event.change is Change.PASSED:
        return f"antifreeze: {who} had no batch for a while ({_at(then)}): {_culprit(then)}; it has recovered"
    text = f"antifreeze: {who} has had no batch for {then.waited_s:.1f} s ({_at(then)}): "
    if event.verdict.kind is RankProblem.SLOW:
        hint = f"`loader.report()` on rank {then.rank} says what would help most"
        return f"{text}its workers are active but slow; {_culprit(then, is_slow=True)}{ours}\n  hint: {hint}"
    recovery = f"look at the log of rank {then.rank}"
    if then.cause:
        recovery = f"rank {then.rank} replaces the worker automatically"
    return f"{text}{_culprit(then)}{ours}\n  hint: {recovery}; nothing is killed from here"


def _clean(record: RankRecord) -> RankRecord:
    """Return a record with texts that are fit to be logged, no matter who wrote them."""
    texts: dict[str, Any] = {
        name: one_line(value) for name, value in record._asdict().items() if isinstance(value, str)
    }
    return record._replace(**texts)


def _who(record: RankRecord, rank: int, world_size: int) -> str:
    this = "this one; " if record.rank == rank else ""
    pid = f", pid {record.pid}" if record.pid else ""
    return f"rank {record.rank} of {world_size} ({this}host {record.host or 'unknown'}{pid})"


def _at(record: RankRecord) -> str:
    return f"epoch {record.epoch}, step {record.step}"


def _culprit(record: RankRecord, *, is_slow: bool = False) -> str:
    if not record.worker:
        return "what it waits for is not known"
    stalled = "is" if is_slow else "stalled"
    still = f" for {record.still_s:.1f} s" if record.still_s and not is_slow else ""
    stage = f" in {record.stage}" if record.stage else ""
    what = f" at {record.what}" if record.what else ""
    line = f", {record.line}" if record.line else ""
    cause = f": it {record.title}{line} [cause: {record.cause}]" if record.cause else line
    return f"its {record.worker} {stalled}{still}{stage}{what}{cause}"


def _silent(verdict: RankVerdict, who: str, ours: str, state: str | None, store: str) -> str:
    why, hint = _UNKNOWN if state is None else _STATES.get(state, _RUNS)
    record = verdict.record
    names = {"pid": record.pid or "<pid>", "host": record.host or "its machine", "rank": record.rank}
    last = f"last seen at {_at(record)}" if record.pid else "it has never sent a record"
    held = f", and so has the job's store ({store}), which it holds" if store else ""
    return (
        f"antifreeze: {who} has been silent for {verdict.silent_s:.1f} s ({last}){held}: "
        f"{why.format(**names)}{ours}\n  hint: {hint.format(**names)}; nothing is killed from here"
    )
