"""Who holds the others up: rules that need no clock, no store and no rank."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from antifreeze.distributed._rank_judge import (
    AGAIN_S,
    GRACE_S,
    SLOW_AGAIN_S,
    SLOW_S,
    Change,
    RankProblem,
    RankVerdict,
    Told,
    concerning,
    judge,
)
from antifreeze.distributed._record import RankRecord, RankStatus, Seen

NOW_S = 1000.0
times = st.floats(0, 100).map(lambda s: round(s, 2))
limits = st.sampled_from([0.5, 1.0, 2.0, 10.0, 30.0])
records = st.builds(
    RankRecord,
    rank=st.just(0),
    pid=st.just(77),
    beat=st.integers(1, 9),
    active=st.booleans(),
    epoch=st.integers(0, 2),
    step=st.integers(0, 9),
    waited_s=times,
    still_s=times,
    warn_s=limits,
    silent_s=limits,
    number=st.integers(0, 2),
    over=st.booleans(),
)


def judged(record: RankRecord, silent_s: float = 0.0) -> RankProblem | None:
    verdicts = judge({record.rank: Seen(record, NOW_S - silent_s)}, NOW_S)
    return verdicts[0].kind if verdicts else None


# -- judge ---------------------------------------------------------------------------------------------------------


@given(record=records, silent_s=times)
def test_each_rank_is_judged_by_its_own_limits(record: RankRecord, silent_s: float) -> None:
    """The table of the module, said in another way."""
    found = judged(record, silent_s)
    waits = record.waited_s >= record.warn_s + GRACE_S
    stands = record.still_s >= record.warn_s

    assert (found is RankProblem.SILENT) == (record.active and silent_s >= record.silent_s)
    if found is RankProblem.STUCK:
        assert record.number or (waits and stands)
    if found is RankProblem.SLOW:
        assert not record.number
        assert waits
        assert not stands
        assert record.waited_s >= max(SLOW_S, record.silent_s)
    if found is None and record.active:
        assert silent_s < record.silent_s
        assert not record.number
        assert not (waits and stands)


@given(record=records, silent_s=times)
def test_a_rank_that_iterates_over_nothing_may_be_silent(record: RankRecord, silent_s: float) -> None:
    """It is between two epochs, or at its end."""
    idle = RankRecord(
        rank=record.rank, pid=record.pid, beat=record.beat, waited_s=record.waited_s, still_s=record.still_s
    )

    assert judged(idle, silent_s) is None


@given(steps=st.lists(st.integers(0, 9), min_size=1, max_size=8), idle=st.booleans())
def test_nothing_is_said_of_ranks_that_train(steps: list[int], idle: bool) -> None:
    """However long a step takes: none of them waits for data, and all of them send records."""
    seen = {rank: Seen(RankRecord(rank=rank, active=True, step=step), NOW_S) for rank, step in enumerate(steps)}

    assert judge(seen, NOW_S + 1) == []


@given(others=st.lists(records, max_size=6), silent=st.lists(times, min_size=6, max_size=6))
def test_a_rank_is_judged_whatever_the_others_do(others: list[RankRecord], silent: list[float]) -> None:
    """One that stands still hides no other, and verdicts come in the order of ranks."""
    seen = {rank: Seen(record._replace(rank=rank), NOW_S - silent[rank]) for rank, record in enumerate(others)}
    verdicts = judge(seen, NOW_S)
    alone = [verdict for rank in seen for verdict in judge({rank: seen[rank]}, NOW_S)]

    assert verdicts == alone


@given(record=records, silent_s=times, waited_s=st.sampled_from([0.0, 3.0, 30.0]), idle_s=st.floats(0, 60))
def test_of_a_slow_rank_only_those_speak_whom_it_holds_up(
    record: RankRecord, silent_s: float, waited_s: float, idle_s: float
) -> None:
    """When a job starts, all wait for their own data, and the first that has it must not accuse the others."""
    verdicts = judge({0: Seen(record, NOW_S - silent_s)}, NOW_S)
    own = RankStatus(0, 0, waited_s, max(idle_s, waited_s))
    held_up = waited_s == 0 and idle_s >= SLOW_S

    assert concerning(verdicts, own) == [v for v in verdicts if v.kind is not RankProblem.SLOW or held_up]


# -- what is said of it --------------------------------------------------------------------------------------------


@given(history=st.lists(records, max_size=30))
def test_each_stall_is_spoken_of_once_and_its_end_once(history: list[RankRecord]) -> None:
    """Whatever comes, in whatever order: no line twice, and no end without a beginning."""
    told, now_s = Told(), 0.0
    said: list[tuple[Change, Any]] = []
    for record in history:
        now_s += 0.5
        verdicts = judge({0: Seen(record, now_s)}, now_s)
        said += [(news.change, news.verdict.key) for news in told.news(verdicts, {0: record}, now_s)]
    begun = [key for change, key in said if change is Change.BEGUN]
    over = [key for change, key in said if change is Change.OVER]

    assert len(begun) - len(over) == len(told.open) + _superseded(said)
    assert all(key in begun for key in over)
    assert len(begun) <= 8 or len({*begun}) > 1  # only the last few are remembered


def _superseded(said: list[tuple[Change, Any]]) -> int:
    """Stalls of a rank that another one followed before they were over; only the last is spoken of again."""
    count, is_open = 0, False
    for change, _ in said:
        if change is Change.BEGUN:
            count, is_open = count + is_open, True
        elif change is Change.OVER:
            is_open = False
    return count


def stuck(**facts: Any) -> RankRecord:
    return RankRecord(
        rank=3, **({"pid": 7, "active": True, "step": 4, "number": 1, "warn_s": 1.0, "silent_s": 2.0} | facts)
    )


def news_of(told: Told, record: RankRecord, now_s: float, silent_s: float = 0.0) -> list[tuple[Change, RankProblem]]:
    verdicts = judge({3: Seen(record, now_s - silent_s)}, now_s)
    return [(news.change, news.verdict.kind) for news in told.news(verdicts, {3: record}, now_s)]


def test_a_stall_begins_lasts_and_is_over() -> None:
    """While it lasts nothing is repeated; a batch ends it."""
    told = Told()

    assert news_of(told, stuck(waited_s=1.2), 1.0) == [(Change.BEGUN, RankProblem.STUCK)]
    assert news_of(told, stuck(waited_s=1.7), 1.5) == []
    assert news_of(told, stuck(step=5, over=True), 2.0) == [(Change.OVER, RankProblem.STUCK)]
    assert news_of(told, stuck(step=9, over=True), 2.5) == []
    assert news_of(told, stuck(step=9, number=0), 8.0) == []
    assert news_of(told, stuck(step=9, number=2), 9.0) == []  # so soon after the last one
    assert news_of(told, stuck(step=9, number=2), 1.0 + AGAIN_S) == [(Change.BEGUN, RankProblem.STUCK)]


def test_a_stall_that_was_over_before_it_was_heard_of_is_still_named() -> None:
    """The cure may be faster than the news."""
    told = Told()

    assert news_of(told, stuck(over=True), 1.0) == [(Change.PASSED, RankProblem.STUCK)]
    assert news_of(told, stuck(over=True), 1.5) == []
    assert told.open == {}


def test_a_silent_rank_is_over_when_it_is_heard_of_again() -> None:
    """Its next record says so, whatever is in it. What was said of it before is not repeated."""
    told = Told()

    assert news_of(told, stuck(beat=5), 1.0) == [(Change.BEGUN, RankProblem.STUCK)]
    assert news_of(told, stuck(beat=5), 34.0, silent_s=2.5) == [(Change.BEGUN, RankProblem.SILENT)]
    assert news_of(told, stuck(beat=5), 39.0, silent_s=7.5) == []
    assert news_of(told, stuck(beat=6), 39.5) == [(Change.OVER, RankProblem.SILENT)]


def test_a_rank_that_is_slow_at_every_step_is_spoken_of_now_and_then() -> None:
    """One line for each step of a slow job would bury all others."""
    told, said = Told(), 0
    for step in range(1000):
        record = stuck(number=0, step=step, waited_s=12.0, still_s=0.1)
        said += [change for change, _ in news_of(told, record, 12.0 * step)].count(Change.BEGUN)

    assert said == 12.0 * 1000 / SLOW_AGAIN_S


def test_the_same_number_of_another_process_is_another_stall() -> None:
    """A rank that was started again counts from one."""
    keys = {RankVerdict(RankProblem.STUCK, stuck(pid=pid)).key for pid in (7, 8)}

    assert len(keys) == 2
