"""Which tasks there are, who has them, and what has come back: pure bookkeeping, without a clock or a process.

add ──▶ waiting ──give──▶ with a worker ──done──▶ back ──take──▶ taken ──▶ delivered
           ▲                    │                  ▲                │
           └───────lost─────────┘                  └───take back────┘
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antifreeze.worker import Task

SAMPLE_DEATHS = 2
"""A sample that has cost this many workers is poison."""
TASK_DEATHS = 4
"""So is a batch that has cost this many, at whatever samples."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A task that must not be given to another worker: it would cost that one as well."""

    step: int
    position: int
    """The sample's place in its batch; -1 if it is not one sample."""


class TaskTable:
    """The tasks of one epoch. Steps have rising numbers, and are delivered in that order or as they come."""

    def __init__(self, num_slots: int, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self._tasks: dict[int, Task] = {}
        self._waiting: deque[int] = deque()
        self._pinned: dict[int, int] = {}
        self._with: list[dict[int, None]] = [{} for _ in range(num_slots)]
        self._back: dict[int, Any] = {}
        self._next = 0
        self._taken: tuple[Task, int | None, Any] | None = None
        self._deaths: Counter[tuple[int, int, int]] = Counter()

    # -- what is there ---------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """How many tasks were added and not delivered."""
        return len(self._tasks)

    @property
    def num_back(self) -> int:
        """How many wait to be delivered."""
        return len(self._back)

    @property
    def is_ready(self) -> bool:
        """Whether the next outcome is there."""
        return bool(self._back) and (not self._in_order or self._next in self._back)

    def count_next(self, counts: Callable[[Any], bool]) -> int:
        """Return how many of the next outcomes count, up to the first that is not there."""
        step = number = 0
        while (self._next + step) in self._back:
            number += counts(self._back[self._next + step])
            step += 1
        return number

    def load(self, slot: int) -> int:
        """How many tasks a worker has."""
        return len(self._with[slot])

    def holds(self, slot: int, step: int) -> bool:
        """Tell whether a worker was given this task and is still expected to bring it back."""
        return step in self._with[slot]

    def has(self, step: int) -> bool:
        """Tell whether a task was added and not delivered."""
        return step in self._tasks

    def task(self, step: int) -> Task:
        """Return a task that was not delivered yet."""
        return self._tasks[step]

    def deaths(self, step: int) -> int:
        """How many workers a task has cost."""
        return sum(count for (s, _, _), count in self._deaths.items() if s == step)

    # -- forward ---------------------------------------------------------------------------------------------------

    def add(self, task: Task, slot: int | None = None) -> None:
        """Take in a task; with a slot, for that worker alone."""
        self._tasks[task.step] = task
        self._waiting.append(task.step)
        if slot is not None:
            self._pinned[task.step] = slot

    def give(self, slot: int, most: int) -> list[Task]:
        """Return tasks for a worker, the earliest first; it has them from now on."""
        given: list[int] = []
        for step in self._waiting:
            if len(given) >= most:
                break
            if self._pinned.get(step, slot) == slot:
                given.append(step)
        for step in given:
            self._waiting.remove(step)
            self._with[slot][step] = None
        return [self._tasks[step] for step in given]

    def done(self, slot: int, step: int, outcome: Any) -> bool:
        """Note what became of a task; False if nobody waits for it any more."""
        if step not in self._with[slot]:
            return False
        del self._with[slot][step]
        self._back[step] = outcome
        return True

    def take(self) -> Any | None:
        """Return the next outcome to deliver, or None if it has not come back."""
        if self._in_order and self._next not in self._tasks:
            self._next = min(self._tasks, default=self._next)
        step = self._next if self._in_order else next(iter(self._back), self._next)
        if step not in self._back:
            self._taken = None
            return None
        outcome = self._back[step]
        self._taken = (self._tasks[step], self._pinned.get(step), outcome)
        del self._tasks[step], self._back[step]
        self._pinned.pop(step, None)
        if self._in_order:
            self._next += 1
        return outcome

    def delivered(self) -> None:
        """Note that what was taken last has reached the user."""
        self._taken = None

    # -- backward --------------------------------------------------------------------------------------------------

    def lost(self, slot: int, at: tuple[int, int, int] | None) -> Poison | None:
        """Put a lost worker's tasks back. ``at`` is (step, position, stage) where it stood, if it stood at one.

        Returns the task that must not be tried again, if it is one; it is out of the way until ``again`` or ``fail``.
        """
        steps = sorted(self._with[slot])
        self._with[slot].clear()
        poison = None
        if at is not None and at[0] in steps:
            self._deaths[at] += 1
            if self._deaths[at] >= SAMPLE_DEATHS:
                poison = Poison(at[0], at[1])
            elif self.deaths(at[0]) >= TASK_DEATHS:
                poison = Poison(at[0], -1)
        if poison is not None:
            steps.remove(poison.step)
        self._wait_again(steps)
        return poison

    def forgive(self, at: tuple[int, int, int]) -> None:
        """Take back that a place has cost a worker: the worker was lost for another reason."""
        self._deaths[at] -= 1

    def again(self, step: int, task: Task) -> None:
        """Have a task made after all, changed: without the sample that cost its workers, say."""
        self._tasks[step] = task
        for key in [key for key in self._deaths if key[0] == step]:
            del self._deaths[key]
        self._back.pop(step, None)
        self._wait_again([step])

    def redo(self, task: Task) -> None:
        """Have a task made that was delivered last, as a failure: the user wants it without a sample."""
        self._tasks[task.step], self._taken = task, None
        if self._in_order:
            self._next = task.step
        self._wait_again([task.step])

    def take_back(self) -> None:
        """Have what was taken last taken again: it has not reached the user."""
        if self._taken is None:
            return
        task, slot, outcome = self._taken
        self._tasks[task.step] = task
        # Order: before what came later. Two batches of one shard must not change places.
        self._back = {task.step: outcome, **self._back}
        if slot is not None:
            self._pinned[task.step] = slot
        if self._in_order:
            self._next = task.step
        self._taken = None

    def fail(self, step: int, outcome: Any) -> None:
        """Deliver this in place of what no worker could make, or needs to make."""
        for steps in self._with:
            steps.pop(step, None)
        if step in self._waiting:
            self._waiting.remove(step)
        self._back[step] = outcome

    def pinned(self, slot: int) -> list[int]:
        """Return the tasks that only this worker can make and that have not come back."""
        return [step for step, owner in self._pinned.items() if owner == slot and step not in self._back]

    def outcomes(self) -> list[Any]:
        """Return what has come back and was not delivered."""
        return list(self._back.values())

    def reclaim(self) -> None:
        """Put all tasks back that have not come back: their workers are gone. What those had sent can still be read."""
        for steps in self._with:
            steps.clear()
        self._waiting.clear()
        self._wait_again([step for step in self._tasks if step not in self._back])

    def _wait_again(self, steps: list[int]) -> None:
        # Order: the earliest first, or those who wait for it would wait behind later ones.
        self._waiting = deque(sorted([*self._waiting, *steps]))
