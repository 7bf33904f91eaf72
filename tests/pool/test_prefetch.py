"""How many tasks a worker has at a time: bounded by time and by memory, whatever the tasks are like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antifreeze.pool._prefetch import AHEAD, PrefetchTuner

seconds = st.floats(0, 1000, allow_nan=False)
nbytes = st.integers(0, 1 << 40)


@given(fixed=st.integers(1, 10_000), tasks=st.lists(st.tuples(seconds, nbytes)))
def test_who_sets_it_gets_it(fixed: int, tasks: list[tuple[float, int]]) -> None:
    """Nothing that is learned changes it."""
    tuner = PrefetchTuner(fixed)
    for task in tasks:
        tuner.observe(*task)

    assert (tuner.quota, tuner.room) == (fixed, 1)


@given(st.lists(st.tuples(seconds, nbytes)))
def test_it_is_never_less_than_torchs_and_never_without_a_bound(tasks: list[tuple[float, int]]) -> None:
    """From the first task on."""
    tuner = PrefetchTuner(None)
    assert tuner.quota == AHEAD
    for task in tasks:
        tuner.observe(*task)
        assert AHEAD <= tuner.quota <= 256
        assert 1 <= tuner.room <= tuner.quota // 2


@given(before=st.lists(st.tuples(seconds, st.integers(0, 1000)), max_size=30), large=st.integers(1 << 22, 1 << 40))
def test_one_large_task_is_believed_at_once(before: list[tuple[float, int]], large: int) -> None:
    """Memory that is gone is gone; a pace that averages would have asked for a hundred of them."""
    tuner = PrefetchTuner(None)
    for task in before:
        tuner.observe(*task)
    tuner.observe(0.0, large)

    assert tuner.quota * large <= max(AHEAD * large, 1 << 24)


@given(sent=st.integers(1 << 16, 1 << 40), tasks=st.lists(st.tuples(seconds, st.integers(0, 1000)), min_size=1))
def test_rows_that_wait_for_a_worker_are_bounded_too(sent: int, tasks: list[tuple[float, int]]) -> None:
    """A transform that makes a number of an image: batches are tiny, and what is sent for them is not."""
    tuner = PrefetchTuner(None)
    for task in tasks:
        tuner.sent(sent)
        tuner.observe(*task)

    assert tuner.quota * sent <= max(AHEAD * sent, 1 << 24)


def test_tiny_tasks_are_grouped_and_slow_ones_are_not() -> None:
    """A message costs as much as many tiny batches."""
    tiny, slow = PrefetchTuner(None), PrefetchTuner(None)
    for _ in range(50):
        tiny.observe(0.00001, 100)
        slow.observe(0.1, 100)

    assert (tiny.quota, tiny.room) == (256, 128)
    assert (slow.quota, slow.room) == (AHEAD, 1)


def test_tasks_that_become_slow_are_noticed() -> None:
    """Within a few of them, or one worker would hold what another could make."""
    tuner = PrefetchTuner(None)
    for _ in range(1000):
        tuner.observe(0.00001, 100)
    for _ in range(3):
        tuner.observe(0.2, 100)

    assert tuner.quota == AHEAD
