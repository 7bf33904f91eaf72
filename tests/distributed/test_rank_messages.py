"""What is read at three in the morning."""

from __future__ import annotations

import pytest

from antifreeze.distributed._rank_judge import (
    IN_FULL,
    REST_S,
    Change,
    LogThrottle,
    RankEvent,
    RankProblem,
    RankVerdict,
    say,
    say_rest,
    say_store,
)
from antifreeze.distributed._record import RankRecord

STUCK = RankRecord(
    rank=3,
    host="node-7",
    pid=77,
    active=True,
    step=41,
    waited_s=2.42,
    still_s=2.31,
    worker="worker 1 (pid 99)",
    stage="transform",
    what="data/part-00003.parquet, row 17 (batch 41)",
    line="train.py:12 in augment",
    number=1,
    cause="sleeping",
    title="sleeps",
)


def said(change: Change, kind: RankProblem, record: RankRecord = STUCK, rank: int = 0, state: str | None = None) -> str:
    news = RankEvent(change, RankVerdict(kind, record, 5.04), record)
    return say(news, rank=rank, world_size=8, idle_s=2.61, state=state)


def test_a_stuck_rank_is_named_with_all_that_is_known() -> None:
    """Rank, machine, process, worker, file, row, stage, time, cause, line; and what is done about it."""
    assert said(Change.BEGUN, RankProblem.STUCK) == (
        "antifreeze: rank 3 of 8 (host node-7, pid 77) has had no batch for 2.4 s (epoch 0, step 41): its worker 1 "
        "(pid 99) stalled for 2.3 s in transform at data/part-00003.parquet, row 17 (batch 41): it sleeps, "
        "train.py:12 in augment [cause: sleeping]; this rank (0) has taken no batch for 2.6 s\n"
        "  hint: rank 3 replaces the worker automatically; nothing is killed from here"
    )


def test_a_rank_names_itself_too() -> None:
    """Logs of ranks are read one at a time."""
    text = said(Change.BEGUN, RankProblem.STUCK, rank=3)

    assert "rank 3 of 8 (this one; host node-7, pid 77)" in text
    assert "this rank (3)" not in text


@pytest.mark.parametrize(
    ("state", "why", "what_to_do"),
    [
        ("T", "its process is stopped (SIGSTOP)", "`kill -CONT 77` on node-7"),
        ("t", "a debugger holds its process", "process 77"),
        ("D", "waits for a disk", "`dmesg`"),
        ("gone", "its process has ended", "log of rank 3"),
        ("S", "native code holds the interpreter's lock", "py-spy dump --native --pid 77"),
        ("R", "native code holds the interpreter's lock", "py-spy dump --native --pid 77"),
        (None, "its machine cannot be reached", "grep State /proc/77/status"),
    ],
)
def test_a_silent_rank_is_explained_as_far_as_its_process_can_be_seen(
    state: str | None, why: str, what_to_do: str
) -> None:
    """From the same machine, more is known."""
    text = said(Change.BEGUN, RankProblem.SILENT, state=state)

    assert "rank 3 of 8 (host node-7, pid 77) has been silent for 5.0 s (last seen at epoch 0, step 41)" in text
    assert why in text
    assert what_to_do in text.partition("hint:")[2]


def test_a_rank_whose_process_holds_the_store_takes_it_along() -> None:
    """Without torchrun, rank 0 holds it: nothing can be heard of anybody then."""
    news = RankEvent(Change.BEGUN, RankVerdict(RankProblem.SILENT, RankRecord(rank=0, host="node-1"), 2.2))
    text = say(news, rank=5, world_size=8, idle_s=3.0, store="node-1:29500")

    assert "rank 0 of 8 (host node-1) has been silent for 2.2 s (it has never sent a record)" in text
    assert "and so has the job's store (node-1:29500), which it holds" in text


def test_the_end_of_a_stall_is_one_short_line() -> None:
    """So that nobody looks for what is not there any more."""
    assert said(Change.OVER, RankProblem.STUCK) == (
        "antifreeze: rank 3 of 8 (host node-7, pid 77) recovered (epoch 0, step 41)"
    )
    assert "responds again" in said(Change.OVER, RankProblem.SILENT)


def test_a_stall_that_has_passed_is_told_as_such() -> None:
    """It was healed faster than it was heard of."""
    text = said(Change.PASSED, RankProblem.STUCK)

    assert "had no batch for a while" in text
    assert "its worker 1 (pid 99) stalled for 2.3 s in transform at data/part-00003.parquet" in text
    assert text.endswith("it has recovered")


def test_a_slow_rank_is_not_called_stuck() -> None:
    """What helps is another number of workers, not a restart."""
    slow = RankRecord(rank=3, pid=7, active=True, waited_s=31.0, worker="worker 0 (pid 9)", what="collating batch 4")
    text = said(Change.BEGUN, RankProblem.SLOW, slow)

    assert "its workers are active but slow; its worker 0 (pid 9) is at collating batch 4" in text
    assert "report()" in text


def test_a_rank_of_which_little_is_known_is_named_all_the_same() -> None:
    """A decoder that waits for nothing in particular, a record of another version."""
    text = said(Change.BEGUN, RankProblem.STUCK, RankRecord(rank=3, active=True, waited_s=12.0))

    assert "rank 3 of 8 (host unknown) has had no batch for 12.0 s" in text
    assert "what it waits for is not known" in text


def begun(rank: int) -> RankEvent:
    return RankEvent(Change.BEGUN, RankVerdict(RankProblem.STUCK, RankRecord(rank=rank)))


def over(rank: int) -> RankEvent:
    return RankEvent(Change.OVER, RankVerdict(RankProblem.STUCK, RankRecord(rank=rank)))


def test_many_ranks_at_once_are_a_few_lines() -> None:
    """If the file system is down, a thousand ranks must not write a thousand lines each, as they stop one by one."""
    speech, lines = LogThrottle(), 0
    for rank in range(1024):
        lines += len(speech.in_full([begun(rank)], rank / 100)) + bool(speech.rest(rank / 100))

    assert lines <= IN_FULL + 10.24 / REST_S
    assert speech.rest(100.0).endswith(" are stalled, too")
    assert speech.rest(200.0) == ""


def test_one_rank_after_the_other_is_told_in_full() -> None:
    """What was said before is over: only what happens together is told together."""
    speech, lines = LogThrottle(), []
    for rank in range(100):
        lines += speech.in_full([begun(rank)], 10.0 * rank)
        lines += speech.in_full([over(rank)], 10.0 * rank + 5)

    assert len(lines) == 200


def test_what_is_told_together_is_told_by_its_kind() -> None:
    """Which are stalled, which are silent, which have recovered."""
    news = [RankEvent(Change.BEGUN, RankVerdict(RankProblem.STUCK, RankRecord(rank=rank))) for rank in range(4, 1024)]
    news += [
        RankEvent(Change.BEGUN, RankVerdict(RankProblem.SILENT, RankRecord(rank=3))),
        RankEvent(Change.OVER, RankVerdict(RankProblem.STUCK, STUCK)),
    ]

    assert say_rest(news) == (
        "antifreeze: ranks 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, ... (1020) are stalled, too; "
        "ranks 3 (1) are silent, too; ranks 3 (1) recovered, too"
    )


def test_a_store_that_no_rank_holds_is_named_by_its_address() -> None:
    """With torchrun, its agent holds it."""
    text = say_store("node-1:29500", 2.2, idle_s=3.0)

    assert "(node-1:29500) has not answered for 2.2 s" in text
    assert "torchrun's agent" in text
