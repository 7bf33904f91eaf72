"""Where tasks come from: the order of a sampler, and the shares of an iterable in turn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import DuplicateData
from antifreeze.ipc import Packed
from antifreeze.pool import IndexSteps, IndexTasks, ShardProgress, ShardTasks, TaskSource
from antifreeze.worker import Failure, Result, ShardState, Task

NOTHING_PACKED = Packed(b"", [])


def tasks_of(source: TaskSource) -> Iterator[tuple[Task, int | None]]:
    while (found := source.next()) is not None:
        yield found


def worker(slot: int, token: int) -> Any:
    return SimpleNamespace(slot=slot, token=token)


def failure() -> Failure:
    return Failure(what="", sample="", position=-1, kind="", message="", traceback="")


# -- indices -------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers())))
def test_each_batch_of_indices_is_a_task_for_anybody(batches: list[list[int]]) -> None:
    """Steps have no gaps; asking on after the end is allowed."""
    source = IndexTasks(iter(batches), epoch=3, seed=5, dataset="D")
    found = list(tasks_of(source))

    assert [(task.step, task.what) for task, _ in found] == list(enumerate(batches))
    assert {(task.epoch, task.seed, slot) for task, slot in found} <= {(3, 5, None)}
    assert source.next() is None
    assert not source.is_over(None)


def test_a_sampler_is_asked_for_no_more_than_is_needed() -> None:
    """It may have no end."""
    asked = itertools.count()
    source = IndexTasks(asked, epoch=0, seed=0, dataset="D")
    for _ in range(3):
        source.next()

    assert next(asked) == 3


@pytest.mark.parametrize(
    ("index", "is_plain"), [(3, True), ([1, 2], True), ("a", True), ((1, 2), False), ([1, []], False)]
)
def test_plain_indices_travel_as_they_are(index: Any, is_plain: bool) -> None:
    """All others go through the codec, which takes everything."""
    packed = []
    taker = SimpleNamespace(packed=lambda task, what: packed.append(what) or task._replace(what="packed"))
    source = IndexTasks(iter([index]), epoch=0, seed=0, dataset="D")
    ((task, _),) = tasks_of(source)

    assert source.prepare(task, taker).what == (index if is_plain else "packed")  # type: ignore[arg-type]
    assert packed == ([] if is_plain else [index])


@given(st.permutations(range(12)), st.integers(0, 12), st.booleans())
def test_what_is_not_over_is_given_again(order: list[int], taken: int, in_order: bool) -> None:
    """In order, and each step once; one that was overtaken by others is not forgotten."""
    if in_order:
        order = sorted(order)
    source = IndexTasks(iter("abcdefghijkl"), epoch=0, seed=0, dataset="D", in_order=in_order)
    list(tasks_of(source))
    for step in order[:taken]:
        source.consume(Result(0, step))
    over = source.place()
    rest = IndexTasks(iter("abcdefghijkl"[over.first :]), epoch=0, seed=0, dataset="D", over=over, in_order=in_order)

    assert rest.place().until == over.until
    assert [task.step for task, _ in tasks_of(rest)] == sorted(set(range(12)) - set(order[:taken]))
    for step in sorted(order[taken:]):
        rest.consume(Result(0, step))
    assert rest.place() == IndexSteps(12, 12)


# -- shares --------------------------------------------------------------------------------------------------------


@dataclass
class Shares:
    """Plays the workers of a share source: each gives so many batches."""

    source: ShardTasks
    lengths: list[int]

    def answer(self, task: Task, slot: int) -> Result:
        number = task.what.number
        if number >= self.lengths[slot]:
            return Result(0, task.step, ended=True)
        stand = ShardState(number, 100 * slot + number, b"%d" % number)
        return Result(0, task.step, packed=NOTHING_PACKED, fingerprint=100 * slot + number + 1, stand=stand)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 5))
def test_shares_come_in_turn_until_all_have_ended(lengths: list[int], ahead: int) -> None:
    """Whatever their lengths, and however many tasks are under way: every batch of each, and nothing twice."""
    source = ShardTasks(len(lengths), epoch=0, seed=0, dataset="D")
    shares, under_way, found = Shares(source, lengths), [], []
    while True:
        while len(under_way) < ahead and (more := source.next()) is not None:
            under_way.append(more)
        if not under_way:
            break
        task, slot = under_way.pop(0)
        assert slot is not None
        result = shares.answer(task, slot)
        source.came_back(task, result, slot)
        if not result.ended:
            found.append((task.what.number, slot))

    assert found == sorted((number, slot) for slot, length in enumerate(lengths) for number in range(length))
    assert all(source.is_over(slot) for slot in range(len(lengths)))


def test_who_is_new_to_a_share_is_told_how_far_it_has_come() -> None:
    """Once, with the first task; who goes on with it knows."""
    source = ShardTasks(1, epoch=0, seed=0, dataset="D")
    shares = Shares(source, [9])
    first, second, third, fourth = (task for task, _ in itertools.islice(tasks_of(source), 4))

    assert source.prepare(first, worker(0, 1)) == first
    source.came_back(first, shares.answer(first, 0), 0)
    assert source.prepare(second, worker(0, 1)) == second
    told = source.prepare(second, worker(0, 2)).what
    assert (told.number, told.fingerprint, told.stand) == (1, 1, ShardState(0, 0, b"0"))
    source.came_back(second, shares.answer(second, 0), 0)
    assert source.prepare(third, worker(0, 2)) == third
    told = source.prepare(third, worker(0, 3)).what
    assert (told.number, told.fingerprint, told.stand) == (2, 2, ShardState(1, 1, b"1"))
    assert source.prepare(fourth, worker(0, 3)) == fourth


@pytest.mark.parametrize("how", ["failed", "given up"])
def test_a_share_that_has_failed_is_over(how: str) -> None:
    """What comes after can only be reached through what has failed."""
    source = ShardTasks(2, epoch=0, seed=0, dataset="D")
    (task, slot), _ = itertools.islice(tasks_of(source), 2)
    assert slot == 0
    if how == "failed":
        source.came_back(task, Result(0, task.step, failure=failure()), 0)
    else:
        source.give_up(0)

    assert (source.is_over(0), source.is_over(1)) == (True, False)


@pytest.mark.parametrize(
    ("prints", "asked", "is_error"),
    [
        ([7, 7], False, True),
        ([7, 7], True, False),
        ([7, 8], False, False),
        ([7, 8, 7], False, True),
    ],
)
def test_shares_that_begin_with_the_same_batch_are_noticed(prints: list[int], asked: bool, is_error: bool) -> None:
    """Unless somebody has asked which share is its own: then it is meant."""
    source = ShardTasks(len(prints), epoch=0, seed=0, dataset="D")
    tasks = list(itertools.islice(tasks_of(source), len(prints)))
    problems = []
    for (task, slot), number in zip(tasks, prints, strict=True):
        assert slot is not None
        result = Result(0, task.step, packed=NOTHING_PACKED, fingerprint=number, asked=asked)
        problems.append(source.came_back(task, result, slot))

    assert [isinstance(problem, DuplicateData) for problem in problems] == [False] * (len(prints) - 1) + [is_error]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(0, 20))
def test_shares_begin_after_what_was_taken(lengths: list[int], taken: int) -> None:
    """Each at its own place, in the same turn; one that is over is not asked again."""
    whole = ShardTasks(len(lengths), epoch=0, seed=0, dataset="D")
    everything = deliver(whole, lengths, 99)
    before = ShardTasks(len(lengths), epoch=0, seed=0, dataset="D")
    first = deliver(before, lengths, taken)
    after = ShardTasks(len(lengths), epoch=0, seed=0, dataset="D", reached=before.place())

    assert first + deliver(after, lengths, 99) == everything
    assert [share.number for share in after.place()] == [share.number for share in whole.place()]


def deliver(source: ShardTasks, lengths: list[int], most: int) -> list[tuple[int, int]]:
    """Take up to so many batches, one after the other; return their numbers and shares."""
    found: list[tuple[int, int]] = []
    while len(found) < most and (more := source.next()) is not None:
        task, slot = more
        assert slot is not None
        result = Result(0, task.step, ended=True)
        if not source.is_over(slot) and task.what.number < lengths[slot]:
            result = Result(0, task.step, packed=NOTHING_PACKED, fingerprint=100 * slot + task.what.number)
            found.append((task.what.number, slot))
        if not source.is_over(slot):
            source.came_back(task, result, slot)
        source.consume(result)
    return found


def test_a_saved_share_with_a_state_is_told_it_even_if_it_is_over() -> None:
    """The dataset needs it for the epochs that follow."""
    stands = ShardState(2, 6, b"state"), ShardState(1, 4, b"other")
    reached = ShardProgress(3, 7, stands[0], is_over=True), ShardProgress(2, 5, stands[1])
    source = ShardTasks(2, epoch=0, seed=0, dataset="D", reached=reached)
    tasks = {slot: task.what for task, slot in itertools.islice(tasks_of(source), 2)}

    assert (tasks[0].fingerprint, tasks[0].stand, tasks[0].is_over, tasks[0].is_saved) == (7, stands[0], True, True)
    assert (tasks[1].fingerprint, tasks[1].stand, tasks[1].is_over) == (5, stands[1], False)


def test_a_share_that_has_failed_is_over_for_whoever_goes_on() -> None:
    """Not before: until something later is taken, the failure may be tried again."""
    source = ShardTasks(2, epoch=0, seed=0, dataset="D")
    first, second, third = (task for task, _ in itertools.islice(tasks_of(source), 3))
    source.consume(Result(0, first.step, packed=NOTHING_PACKED, fingerprint=1))
    source.came_back(second, Result(0, second.step, failure=failure()), 1)
    assert [share.is_over for share in source.place()] == [False, False]
    source.consume(Result(0, third.step, packed=NOTHING_PACKED, fingerprint=2))
    assert [share.is_over for share in source.place()] == [False, True]


# -- shards out of order -------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_shards_out_of_order_are_whole(lengths: list[int], ahead: int, data: st.DataObject) -> None:
    """Whoever is fast: every batch of each shard, in its order, and nothing twice; saved at any moment."""
    source = ShardTasks(len(lengths), epoch=0, seed=0, dataset="D", in_order=False)
    shares, under_way, found = Shares(source, lengths), [], []
    while True:
        while len(under_way) < ahead and (more := source.next()) is not None:
            under_way.append(more)
        if not under_way:
            break
        # A worker makes its batches one after the other.
        firsts = {slot: (task, slot) for task, slot in reversed(under_way)}
        task, slot = firsts[data.draw(st.sampled_from(sorted(firsts, key=str)))]
        under_way.remove((task, slot))
        assert slot is not None
        result = shares.answer(task, slot)
        source.came_back(task, result, slot)
        source.consume(result)
        found += [] if result.ended else [(slot, task.what.number)]
        assert [share.number for share in source.place()] == [
            [s for s, _ in found].count(i) for i in range(len(lengths))
        ]

    assert sorted(found) == [(slot, number) for slot, length in enumerate(lengths) for number in range(length)]
    assert all(
        found.index((slot, number)) < found.index((slot, number + 1))
        for slot, number in found
        if (slot, number + 1) in found
    )


def test_out_of_order_the_idlest_worker_is_asked() -> None:
    """One that brings nothing back gets no more than its part, so that there is room for others."""
    source = ShardTasks(2, epoch=0, seed=0, dataset="D", in_order=False)
    under_way = [source.next() for _ in range(4)]
    assert [slot for _, slot in filter(None, under_way)] == [0, 1, 0, 1]
    for number in range(1, 20):
        fast = source.next() if number > 2 else under_way[2 * number - 1]
        assert fast is not None
        task, slot = fast
        assert slot == 1
        result = Result(0, task.step, packed=NOTHING_PACKED, fingerprint=task.step)
        source.came_back(task, result, 1)
        source.consume(result)


def test_a_shard_that_failed_out_of_order_is_over_for_whoever_goes_on() -> None:
    """What came back before the failure does not mean that somebody has seen it, whatever its step."""
    source = ShardTasks(2, epoch=0, seed=0, dataset="D", in_order=False)
    first, second, third, fourth = (task for task, _ in itertools.islice(tasks_of(source), 4))
    early = Result(0, fourth.step, packed=NOTHING_PACKED, fingerprint=1)
    source.came_back(second, Result(0, second.step, packed=NOTHING_PACKED, fingerprint=1), 1)
    source.came_back(fourth, early, 1)
    source.came_back(first, Result(0, first.step, failure=failure()), 0)
    source.consume(early)
    assert [share.is_over for share in source.place()] == [False, False]
    more = source.next()
    assert more is not None
    late = Result(0, more[0].step, packed=NOTHING_PACKED, fingerprint=2)
    source.came_back(more[0], late, 1)
    source.consume(late)
    assert [share.is_over for share in source.place()] == [True, False]
    assert third is not None


def test_shards_begin_with_the_states_that_the_epoch_before_ended_with() -> None:
    """Where nothing was saved and nothing has come back; a worker that has been there ignores it."""
    source = ShardTasks(
        3, epoch=0, seed=0, dataset="D", reached=[ShardProgress(), ShardProgress(), ShardProgress(2, 5)]
    )
    source.begun_again({0: b"zero", 2: b"two"})
    stands = [share.stand for share in source.beginning()]

    assert stands == [ShardState(0, 0, b"zero", is_end=True), None, None]
    told = source.prepare(next(tasks_of(source))[0], worker(0, 1)).what
    assert (told.number, told.stand, told.is_saved) == (0, stands[0], False)
