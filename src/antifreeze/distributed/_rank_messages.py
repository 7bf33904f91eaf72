"""What a person reads at three in the morning about a rank that holds the others up. Pure."""

from __future__ import annotations

from typing import Any

from antifreeze.core import Lines, one_line
from antifreeze.distributed._rank_judge import Change, RankEvent, RankProblem, RankVerdict
from antifreeze.distributed._record import RankRecord

_STATES = {
    "T": ("its process is stopped (SIGSTOP)", "`kill -CONT {pid}` on {host} lets it go on"),
    "t": ("a debugger holds its process", "let it go on, or detach, on {host}: process {pid}"),
    "D": (
        "its process waits for a disk or a network file system that does not answer",
        "look at `dmesg` and at the mounts of {host}",
    ),
    "gone": ("its process has ended", "its last words are in the log of rank {rank}"),
}
_RUNS = (
    "its process lives, and none of its Python threads runs: native code holds the interpreter's lock",
    "`py-spy dump --native --pid {pid}` on {host} shows the line that it stands on",
)
_UNKNOWN = (
    "its process is stopped, native code holds its interpreter's lock, or its machine cannot be reached",
    "on {host}: `grep State /proc/{pid}/status`, then `py-spy dump --native --pid {pid}`",
)


def say(
    news: RankEvent, *, rank: int, world_size: int, idle_s: float, state: str | None = None, store: str = ""
) -> Lines:
    """Return the text of a warning on rank ``rank``, which has taken no batch for ``idle_s``.

    ``state`` is the letter of the process that is spoken of, ``gone``, or None where it cannot be seen. ``store`` is
    where the job's store is, if it is the store that does not answer.
    """
    return Lines(_said(_clean(news), rank, world_size, idle_s, state, one_line(store)))


def _said(news: RankEvent, rank: int, world_size: int, idle_s: float, state: str | None, store: str) -> str:
    then = news.verdict.record
    who = _who(then, rank, world_size)
    if news.change is Change.OVER:
        return _over(news, who)
    ours = "" if then.rank == rank else f"; this rank ({rank}) has taken no batch for {idle_s:.1f} s"
    if news.verdict.kind is RankProblem.SILENT:
        return _silent(news.verdict, who, ours, state, store)
    if news.change is Change.PASSED:
        return f"antifreeze: {who} had no batch for a while ({_at(then)}): {_culprit(then, 'stood')}; it goes on"
    text = f"antifreeze: {who} has had no batch for {then.waited_s:.1f} s ({_at(then)}): "
    if news.verdict.kind is RankProblem.SLOW:
        hint = f"`loader.report()` on rank {then.rank} says what would help most"
        return f"{text}its workers move, and take long; {_culprit(then, 'is')}{ours}\n  hint: {hint}"
    healed = f"rank {then.rank} replaces the worker by itself" if then.cause else f"look at the log of rank {then.rank}"
    return f"{text}{_culprit(then, 'stands')}{ours}\n  hint: {healed}; nothing is killed from here"


def _clean(news: RankEvent) -> RankEvent:
    """Return what is spoken of with texts that are fit to be logged, whoever wrote them."""
    now = None if news.now is None else _clean_record(news.now)
    return news._replace(verdict=news.verdict._replace(record=_clean_record(news.verdict.record)), now=now)


def _clean_record(record: RankRecord) -> RankRecord:
    texts: dict[str, Any] = {
        name: one_line(value) for name, value in record._asdict().items() if isinstance(value, str)
    }
    return record._replace(**texts)


def say_store(where: str, silent_s: float, *, idle_s: float) -> str:
    """Return the text of a warning about a store that does not answer, and that no rank holds."""
    return (
        f"antifreeze: the job's store ({where}) has not answered for {silent_s:.1f} s: torchrun's agent, which holds "
        f"it, is stopped, or its machine cannot be reached; this rank has taken no batch for {idle_s:.1f} s"
    )


def _who(record: RankRecord, rank: int, world_size: int) -> str:
    this = "this one; " if record.rank == rank else ""
    pid = f", pid {record.pid}" if record.pid else ""
    return f"rank {record.rank} of {world_size} ({this}host {record.host or 'unknown'}{pid})"


def _at(record: RankRecord) -> str:
    return f"epoch {record.epoch}, step {record.step}"


def _culprit(record: RankRecord, stands: str) -> str:
    if not record.worker:
        return f"nothing shows what it {'waited' if stands == 'stood' else 'waits'} for"
    what = f" at {record.what}" if record.what else ""
    stage = f", stage {record.stage}" if record.stage else ""
    still = f", for {record.still_s:.1f} s" if record.still_s else ""
    line = f", {record.line}" if record.line else ""
    cause = f": it {record.title}{line} [cause: {record.cause}]" if record.cause else line
    return f"its {record.worker} {stands}{what}{stage}{still}{cause}"


def _silent(verdict: RankVerdict, who: str, ours: str, state: str | None, store: str) -> str:
    why, hint = _UNKNOWN if state is None else _STATES.get(state, _RUNS)
    names = _names(verdict.record)
    last = f"last heard of at {_at(verdict.record)}" if verdict.record.pid else "nothing was ever heard of it"
    held = f", and so has the job's store ({store}), which it holds" if store else ""
    return (
        f"antifreeze: {who} has been silent for {verdict.silent_s:.1f} s ({last}){held}: "
        f"{why.format(**names)}{ours}\n  hint: {hint.format(**names)}; nothing is killed from here"
    )


def _over(news: RankEvent, who: str) -> str:
    now = news.now or news.verdict.record
    if news.verdict.kind is RankProblem.SILENT:
        return f"antifreeze: {who} is heard of again ({_at(now)})"
    return f"antifreeze: {who} goes on ({_at(now)})"


def _names(record: RankRecord) -> dict[str, object]:
    return {"pid": record.pid or "<pid>", "host": record.host or "its machine", "rank": record.rank}
