"""What is logged about ranks that hold the others up: the text of each message, and how many are logged in full. Pure.

If the file system is down, all ranks stall, and each reads about all others. So a few ranks are reported in detail, and
the rest in one line.
"""

from __future__ import annotations

import math
from typing import Any

from antifreeze.core import Lines, one_line
from antifreeze.distributed._rank_judge import Change, RankEvent, RankProblem, RankVerdict
from antifreeze.distributed._record import RankRecord

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

    Args:
        event: what has happened.
        rank: the rank that logs it.
        world_size: the number of ranks.
        idle_s: how long the rank that logs it has taken no batch.
        state: the letter of the process that the event is about, ``gone``, or None where it cannot be seen.
        store: the address of the job's store, if it is the store that does not answer.
    """
    return Lines(_said(_clean(event), rank, world_size, idle_s, state, one_line(store)))


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
        return _over(event, who)
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


def _clean(event: RankEvent) -> RankEvent:
    """Return the event with texts that are fit to be logged, no matter who wrote them."""
    now = None if event.now is None else _clean_record(event.now)
    return event._replace(verdict=event.verdict._replace(record=_clean_record(event.verdict.record)), now=now)


def _clean_record(record: RankRecord) -> RankRecord:
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
    names = _names(verdict.record)
    last = f"last seen at {_at(verdict.record)}" if verdict.record.pid else "it has never sent a record"
    held = f", and so has the job's store ({store}), which it holds" if store else ""
    return (
        f"antifreeze: {who} has been silent for {verdict.silent_s:.1f} s ({last}){held}: "
        f"{why.format(**names)}{ours}\n  hint: {hint.format(**names)}; nothing is killed from here"
    )


def _over(event: RankEvent, who: str) -> str:
    now = event.now or event.verdict.record
    if event.verdict.kind is RankProblem.SILENT:
        return f"antifreeze: {who} responds again ({_at(now)})"
    return f"antifreeze: {who} recovered ({_at(now)})"


def _names(record: RankRecord) -> dict[str, object]:
    return {"pid": record.pid or "<pid>", "host": record.host or "its machine", "rank": record.rank}
