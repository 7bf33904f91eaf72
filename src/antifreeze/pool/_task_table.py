"""Bookkeeping of tasks: which exist, which worker has them, and what was returned. Pure: no clock, no process.

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

SAMPLE_LOSSES = 2
"""A sample that was being processed when this many workers were lost is poison."""
TASK_LOSSES = 4
"""So is a batch that was being processed when this many workers were lost, at any of its samples."""


@dataclass(frozen=True, slots=True)
class Poison:
    """A task that must not be assigned again: it would kill another worker."""

    step: int
    position: int
    """The sample's position in its batch; -1 if no single sample is to blame."""


class TaskTable:
    """The tasks of one epoch. Step numbers increase; outcomes are delivered in that order or as they are returned."""

    def __init__(self, num_slots: int, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self._tasks: dict[int, Task] = {}
        self._waiting: deque[int] = deque()
        self._pinned: dict[int, int] = {}
        self._with: list[dict[int, None]] = [{} for _ in range(num_slots)]
        self._back: dict[int, Any] = {}
        self._next = 0
        self._taken: tuple[Task, int | None, Any] | None = None
        self._losses: Counter[tuple[int, int, int]] = Counter()

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """Number of tasks that were added and not delivered."""
        return len(self._tasks)

    @property
    def num_back(self) -> int:
        """Number of outcomes waiting to be delivered."""
        return len(self._back)

    @property
    def is_ready(self) -> bool:
        """True if the next outcome can be delivered."""
        return bool(self._back) and (not self._in_order or self._next in self._back)

    def count_next(self, counts: Callable[[Any], bool]) -> int:
        """Return how many of the next outcomes satisfy ``counts``, up to the first that is missing."""
        step = number = 0
        while (self._next + step) in self._back:
            number += counts(self._back[self._next + step])
            step += 1
        return number

    def load(self, slot: int) -> int:
        """Number of tasks assigned to a worker."""
        return len(self._with[slot])

    def holds(self, slot: int, step: int) -> bool:
        """Return True if a worker was assigned this task and has not returned it."""
        return step in self._with[slot]

    def has(self, step: int) -> bool:
        """Return True if a task was added and not delivered."""
        return step in self._tasks

    def task(self, step: int) -> Task:
        """Return a task that was not delivered yet."""
        return self._tasks[step]

    def num_losses(self, step: int) -> int:
        """Number of workers lost while processing a task."""
        return sum(count for (s, _, _), count in self._losses.items() if s == step)

    # -- forward ---------------------------------------------------------------------------------------------------

    def add(self, task: Task, slot: int | None = None) -> None:
        """Add a task; with ``slot``, only that worker can run it."""
        self._tasks[task.step] = task
        self._waiting.append(task.step)
        if slot is not None:
            self._pinned[task.step] = slot

    def give(self, slot: int, max_tasks: int) -> list[Task]:
        """Assign up to ``max_tasks`` tasks to a worker and return them, the earliest first."""
        given: list[int] = []
        for step in self._waiting:
            if len(given) >= max_tasks:
                break
            if self._pinned.get(step, slot) == slot:
                given.append(step)
        for step in given:
            self._waiting.remove(step)
            self._with[slot][step] = None
        return [self._tasks[step] for step in given]

    def done(self, slot: int, step: int, outcome: Any) -> bool:
        """Record the outcome of a task; return False if the task is no longer assigned to ``slot``."""
        if step not in self._with[slot]:
            return False
        del self._with[slot][step]
        self._back[step] = outcome
        return True

    def take(self) -> Any | None:
        """Return the next outcome to deliver, or None if it is not available."""
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
        """Record that the outcome taken last has reached the user."""
        self._taken = None

    # -- backward --------------------------------------------------------------------------------------------------

    def lost(self, slot: int, at: tuple[int, int, int] | None) -> Poison | None:
        """Put a lost worker's tasks back. ``at`` is the (step, position, stage) it was processing, if any.

        Returns the task that must not be tried again, if there is one; it is held back until ``retry`` or ``fail``.
        """
        steps = sorted(self._with[slot])
        self._with[slot].clear()
        poison = None
        if at is not None and at[0] in steps:
            self._losses[at] += 1
            if self._losses[at] >= SAMPLE_LOSSES:
                poison = Poison(at[0], at[1])
            elif self.num_losses(at[0]) >= TASK_LOSSES:
                poison = Poison(at[0], -1)
        if poison is not None:
            steps.remove(poison.step)
        self._requeue(steps)
        return poison

    def forgive(self, at: tuple[int, int, int]) -> None:
        """Uncount a loss at ``at``: the worker was lost for another reason."""
        self._losses[at] -= 1

    def retry(self, step: int, task: Task) -> None:
        """Retry a task that was held back, changed: for example without the sample that killed its workers."""
        self._tasks[step] = task
        for key in [key for key in self._losses if key[0] == step]:
            del self._losses[key]
        self._back.pop(step, None)
        self._requeue([step])

    def redo(self, task: Task) -> None:
        """Repeat the task whose failure was delivered last: the user chose to continue without a sample."""
        self._tasks[task.step], self._taken = task, None
        if self._in_order:
            self._next = task.step
        self._requeue([task.step])

    def take_back(self) -> None:
        """Undo the last ``take``: the outcome has not reached the user."""
        if self._taken is None:
            return
        task, slot, outcome = self._taken
        self._tasks[task.step] = task
        # Order: in front of later outcomes. Two batches of one shard must not be swapped.
        self._back = {task.step: outcome, **self._back}
        if slot is not None:
            self._pinned[task.step] = slot
        if self._in_order:
            self._next = task.step
        self._taken = None

    def fail(self, step: int, outcome: Any) -> None:
        """Deliver ``outcome`` for a task that no worker can run, or needs to run."""
        for steps in self._with:
            steps.pop(step, None)
        if step in self._waiting:
            self._waiting.remove(step)
        self._back[step] = outcome

    def pinned(self, slot: int) -> list[int]:
        """Return the tasks that only this worker can run and that have not been returned."""
        return [step for step, owner in self._pinned.items() if owner == slot and step not in self._back]

    def outcomes(self) -> list[Any]:
        """Return the outcomes that were not delivered."""
        return list(self._back.values())

    def reclaim(self) -> None:
        """Put back all tasks that were not returned: their workers are gone. Batches they had sent stay readable."""
        for steps in self._with:
            steps.clear()
        self._waiting.clear()
        self._requeue([step for step in self._tasks if step not in self._back])

    def _requeue(self, steps: list[int]) -> None:
        # Order: the earliest first, or the batch that is waited for would queue behind later ones.
        self._waiting = deque(sorted([*self._waiting, *steps]))
