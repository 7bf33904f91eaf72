"""Whatever workers do: every task is delivered exactly once, and is never with two of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from antifreeze.pool._task_table import SAMPLE_LOSSES, TASK_LOSSES, Poison, TaskTable
from antifreeze.worker import Task

MOST_WORKERS = 4
POSITIONS = st.integers(-1, 2)
STAGES = st.sampled_from([4, 6])


def task_of(step: int, skip: tuple[int, ...] = ()) -> Task:
    return Task(epoch=0, step=step, seed=0, what=[step], skip=skip)


class Workers(RuleBasedStateMachine):
    """Keeps its own, simpler books: each task is in exactly one place."""

    poisons = Bundle("poisons")

    @initialize(num_slots=st.integers(1, MOST_WORKERS), in_order=st.booleans(), is_pinned=st.booleans())
    def begin(self, num_slots: int, in_order: bool, is_pinned: bool) -> None:
        self.num_slots, self.in_order, self.is_pinned = num_slots, in_order, is_pinned
        self.task_table = TaskTable(num_slots, in_order=in_order)
        self.place: dict[int, Any] = {}
        """Of each task: "waiting", a slot, "aside", or ("back", outcome)."""
        self.delivered: list[int] = []
        self.came_back: list[int] = []
        self.losses: dict[tuple[int, int, int], int] = {}
        self.last: Any = None

    def pin(self, step: int) -> int | None:
        return step % self.num_slots if self.is_pinned else None

    @rule(count=st.integers(1, 5))
    def add(self, count: int) -> None:
        for _ in range(count):
            step = len(self.place)
            self.task_table.add(task_of(step), self.pin(step))
            self.place[step] = "waiting"

    @rule(slot=st.integers(0, MOST_WORKERS - 1), most=st.integers(0, 4))
    def give(self, slot: int, most: int) -> None:
        slot %= self.num_slots
        mine = [s for s, at in self.place.items() if at == "waiting" and self.pin(s) in (None, slot)]
        given = [task.step for task in self.task_table.give(slot, most)]

        assert given == sorted(mine)[:most]
        for step in given:
            self.place[step] = slot

    @rule(slot=st.integers(0, MOST_WORKERS - 1), data=st.data())
    def done(self, slot: int, data: st.DataObject) -> None:
        """Also of tasks that this worker does not have, or has no more: a result can be late."""
        slot %= self.num_slots
        if not self.place:
            return
        step = data.draw(st.sampled_from(sorted(self.place)))
        expected = self.place[step] == slot

        assert self.task_table.holds(slot, step) is expected
        assert self.task_table.done(slot, step, ("result", step)) is expected
        if expected:
            self.back(step, ("result", step))

    def back(self, step: int, outcome: Any) -> None:
        self.place[step] = ("back", outcome)
        self.came_back.append(step)

    @rule()
    def take(self) -> None:
        there = {step: at[1] for step, at in self.place.items() if isinstance(at, tuple)}
        if self.in_order:
            expected = len(self.delivered) if len(self.delivered) in there else None
        else:
            expected = next((step for step in self.came_back if step in there), None)

        assert self.task_table.is_ready is (expected is not None)
        outcome = self.task_table.take()
        assert outcome == (None if expected is None else there[expected])
        self.last = None
        if expected is not None:
            self.delivered.append(expected)
            self.place[expected] = "delivered"
            self.last = (expected, outcome)

    @rule(target=poisons, slot=st.integers(0, MOST_WORKERS - 1), data=st.data(), position=POSITIONS, stage=STAGES)
    def lost(self, slot: int, data: st.DataObject, position: int, stage: int) -> Any:
        slot %= self.num_slots
        mine = [step for step, at in self.place.items() if at == slot]
        at = data.draw(st.sampled_from([None, *sorted(self.place)]))
        where = None if at is None else (at, position, stage)
        poison = self.task_table.lost(slot, where)
        for step in mine:
            self.place[step] = "waiting"
        if where is None or at not in mine:
            assert poison is None
            return multiple()
        self.losses[where] = self.losses.get(where, 0) + 1
        of_task = sum(count for (step, _, _), count in self.losses.items() if step == at)

        assert self.task_table.num_losses(at) == of_task
        if self.losses[where] >= SAMPLE_LOSSES:
            assert poison == Poison(at, position)
        elif of_task >= TASK_LOSSES:
            assert poison == Poison(at, -1)
        else:
            assert poison is None
            return multiple()
        self.place[at] = "aside"
        return (poison, where)

    @rule(data=st.data())
    def forgive(self, data: st.DataObject) -> None:
        """A worker was lost for another reason than where it stood."""
        counted = [where for where, count in sorted(self.losses.items()) if count]
        if counted:
            where = data.draw(st.sampled_from(counted))
            self.task_table.forgive(where)
            self.losses[where] -= 1

    def is_aside(self, poison: Poison) -> bool:
        return self.place.get(poison.step) == "aside"

    @rule(poison=consumes(poisons))
    def again(self, poison: tuple[Poison, Any]) -> None:
        step, position = poison[0].step, poison[0].position
        if self.is_aside(poison[0]):
            self.task_table.retry(step, task_of(step, (position,)))
            self.place[step] = "waiting"
            self.losses = {where: count for where, count in self.losses.items() if where[0] != step}

            assert self.task_table.num_losses(step) == 0
            assert self.task_table.task(step).skip == (position,)

    @rule(poison=consumes(poisons))
    def fail_poison(self, poison: tuple[Poison, Any]) -> None:
        if self.is_aside(poison[0]):
            self.fail(poison[0].step)

    @rule(data=st.data())
    def fail_any(self, data: st.DataObject) -> None:
        """A share has ended, and all that was asked of it has its answer."""
        open_ones = [s for s, at in self.place.items() if at != "delivered" and not isinstance(at, tuple)]
        if open_ones:
            self.fail(data.draw(st.sampled_from(sorted(open_ones))))

    def fail(self, step: int) -> None:
        self.task_table.fail(step, ("error", step))
        self.back(step, ("error", step))

    @precondition(lambda self: self.last is not None and not self.is_pinned)
    @rule()
    def redo(self) -> None:
        """The user wants the task that was delivered last once more, without a sample."""
        step, _ = self.last
        self.task_table.redo(task_of(step, (0,)))
        self.delivered.remove(step)
        self.place[step] = "waiting"
        self.came_back = [s for s in self.came_back if s != step]
        self.last = None

    @rule()
    def take_back(self) -> None:
        """What was taken last has not reached the user, who was interrupted; if it has, there is nothing to do."""
        self.task_table.take_back()
        if self.last is not None:
            step, outcome = self.last
            self.delivered.remove(step)
            self.came_back = [step, *(s for s in self.came_back if s != step)]
            self.place[step] = ("back", outcome)
            self.last = None

    @rule()
    def is_delivered(self) -> None:
        self.task_table.delivered()
        self.last = None

    @rule()
    def reclaim(self) -> None:
        """The epoch goes on with other workers: what has not come back is made by those."""
        self.task_table.reclaim()
        for step, at in self.place.items():
            if at == "aside" or isinstance(at, int):
                self.place[step] = "waiting"

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "task_table"):
            return
        places = list(self.place.values())
        assert self.task_table.open == len(places) - len(self.delivered)
        assert self.task_table.num_back == sum(isinstance(at, tuple) for at in places)
        assert sorted(self.task_table.outcomes()) == sorted(at[1] for at in places if isinstance(at, tuple))
        for slot in range(self.num_slots):
            assert self.task_table.load(slot) == places.count(slot)
            if self.is_pinned:
                mine = [s for s in self.place if self.pin(s) == slot]
                expected = [s for s in mine if self.place[s] != "delivered" and not isinstance(self.place[s], tuple)]
                assert sorted(self.task_table.pinned(slot)) == expected

    def teardown(self) -> None:
        """From any state, healthy workers finish the epoch: each task is delivered once, in order if that is wished."""
        if not hasattr(self, "task_table"):
            return
        self.task_table.reclaim()
        for slot in range(self.num_slots):
            for task in self.task_table.give(slot, 1 << 20):
                assert self.task_table.done(slot, task.step, ("result", task.step))
        while (outcome := self.task_table.take()) is not None:
            self.delivered.append(outcome[1])

        assert sorted(self.delivered) == list(range(len(self.place)))
        assert not self.in_order or self.delivered == sorted(self.delivered)
        assert self.task_table.open == 0


TestWorkers = Workers.TestCase


def given(task_table: TaskTable, slot: int, most: int = 9) -> list[int]:
    return [task.step for task in task_table.give(slot, most)]


def test_lost_tasks_come_before_later_ones() -> None:
    """Everybody waits for the earliest."""
    task_table = TaskTable(2)
    for step in range(6):
        task_table.add(task_of(step))
    given(task_table, 0, 2)
    given(task_table, 1, 2)
    task_table.lost(0, None)

    assert given(task_table, 1) == [0, 1, 4, 5]


def test_the_same_sample_twice_is_poison_and_two_samples_are_not() -> None:
    """One loss may be bad luck."""
    task_table = TaskTable(1)
    task_table.add(task_of(0))
    found = []
    for at in [(0, 1, 4), (0, 2, 4), (0, 1, 6)]:
        given(task_table, 0)
        found.append(task_table.lost(0, at))

    assert found == [None, None, None]
    given(task_table, 0)
    assert task_table.lost(0, (0, 1, 4)) == Poison(0, 1)
    assert given(task_table, 0) == []


def test_a_worker_that_stood_at_a_task_of_another_blames_nobody() -> None:
    """Its record may be older than the tasks that it has."""
    task_table = TaskTable(2)
    task_table.add(task_of(0))
    task_table.add(task_of(1))
    given(task_table, 0, 1)
    given(task_table, 1, 1)

    assert [task_table.lost(0, (1, 0, 4)) for _ in range(5)] == [None] * 5
    assert task_table.num_losses(1) == 0


def test_poison_that_nobody_has_decided_about_is_not_forgotten() -> None:
    """The epoch was left because of another error while it was being found out how the worker had ended."""
    task_table = TaskTable(1)
    task_table.add(task_of(0))
    for _ in range(SAMPLE_LOSSES):
        given(task_table, 0)
        poison = task_table.lost(0, (0, 0, 4))
    assert poison is not None
    task_table.reclaim()

    assert given(task_table, 0) == [0]


@pytest.mark.parametrize("in_order", [True, False])
def test_what_has_come_back_stays_when_workers_are_changed(in_order: bool) -> None:
    """It was made; and the next one to make it might not be asked where the last one was."""
    task_table = TaskTable(2, in_order=in_order)
    for step in range(3):
        task_table.add(task_of(step))
    given(task_table, 0)
    task_table.done(0, 1, "one")
    task_table.reclaim()

    assert given(task_table, 1) == [0, 2]
    task_table.done(1, 0, "zero")
    assert sorted([task_table.take(), task_table.take()]) == ["one", "zero"]


def test_steps_may_be_missing() -> None:
    """A run that goes on does not make again what is over; nobody waits for that."""
    task_table = TaskTable(1)
    for step in (5, 7, 9):
        task_table.add(task_of(step))
    task_table.give(0, 3)
    for step in (9, 7, 5):
        assert task_table.take() is None
        task_table.done(0, step, f"batch {step}")

    assert [task_table.take() for _ in range(4)] == ["batch 5", "batch 7", "batch 9", None]


def test_what_is_taken_back_comes_before_what_came_back_after_it() -> None:
    """Out of order, too: the batches of one shard must not change places."""
    task_table = TaskTable(1, in_order=False)
    for step in range(3):
        task_table.add(task_of(step))
    task_table.give(0, 3)
    for step in range(3):
        task_table.done(0, step, f"batch {step}")
    assert task_table.take() == "batch 0"
    task_table.take_back()

    assert [task_table.take() for _ in range(3)] == ["batch 0", "batch 1", "batch 2"]
