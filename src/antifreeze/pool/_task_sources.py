"""Where the tasks of an epoch come from: the indices of a sampler, or the shards of an iterable dataset."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from antifreeze.core import AntifreezeError, DuplicateData
from antifreeze.ipc import repr_of
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.worker import Result, Shard, ShardState, Task

_PLAIN = frozenset({int, str, bytes, float, bool})


def text_of_sample(sample: int | str) -> str:
    """Return the name of a sample: its number, or its index as it is written."""
    return f"sample {sample}" if isinstance(sample, int) else sample.strip("'\"")


class TaskSource(Protocol):
    """Yields the tasks of an epoch. As it is here, any worker can run any of them."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task and the slot of the only worker that can run it, if any; None if there are no more."""
        ...

    def is_ready(self) -> bool:
        """Return True if ``next`` will not block."""
        return True

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Return the task in the form in which it is sent. Rows are packed only here."""
        ...

    def came_back(self, task: Task, result: Result, slot: int) -> AntifreezeError | None:  # noqa: ARG002
        """Record a result; return the problem with it, if any."""
        return None

    def consume(self, result: Result) -> None:
        """Record that a result was delivered, or that it held no batch to deliver."""
        ...

    def is_over(self, slot: int | None) -> bool:  # noqa: ARG002
        """Return True if the shard of ``slot`` is exhausted: its pending tasks return no batch."""
        return False

    def give_up(self, slot: int) -> None:  # noqa: ARG002
        """Record that a task of ``slot`` is poison: a shard that can only continue through it is over."""
        return

    def begun_again(self, ends: Mapping[int, bytes]) -> None:  # noqa: ARG002
        """Record that a run starts on workers that know nothing of earlier tasks.

        ``ends`` holds the dataset states in which persistent workers ended the previous epoch, by slot.
        """
        return

    def name(self, task: Task, sample: str, position: int) -> str:
        """Return how an error names a sample, given the worker's name for it and its position in the batch."""
        ...

    def location(self, task: Task, sample: str, position: int) -> str:
        """Return the same with the batch that it is in."""
        return f"batch {task.step}, {self.name(task, sample, position)}"


class IndexSteps(NamedTuple):
    """Which steps of an epoch are done: all before ``first``, and those before ``until`` that are not missing."""

    first: int = 0
    until: int = 0
    missing: tuple[int, ...] = ()


class IndexTasks(TaskSource):
    """One task for each batch of indices, or each index, that a sampler yields.

    With ``over``, the indices begin at its first step, and steps that are done are not repeated.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        *,
        epoch: int,
        seed: int,
        dataset: str,
        over: IndexSteps | None = None,
        in_order: bool = True,
        is_ready: Callable[[], bool] | None = None,
    ) -> None:
        over = over or IndexSteps()
        self._is_ready = is_ready
        """Returns True if another step can be drawn from the sampler now; None if it always can."""
        self._indices, self._epoch, self._seed, self._dataset = indices, epoch, seed, dataset
        self._step, self._until, self._in_order = over.first, over.until, in_order
        self._to_do: Collection[int] = frozenset(over.missing)
        """Steps before ``until`` that are still to be run."""
        self._over_until, self._missing = over.until, set(over.missing)

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task. Runs the sampler in the thread that iterates over the loader."""
        while True:
            try:
                what = next(self._indices)
            except StopIteration:
                return None
            step, self._step = self._step, self._step + 1
            if step >= self._until or step in self._to_do:
                return Task(self._epoch, step, self._seed, what), None

    def consume(self, result: Result) -> None:
        """Record that a step is done. In order, so are all earlier steps: a failed step is not retried."""
        step = result.step
        if step >= self._over_until:
            if not self._in_order:
                self._missing.update(range(self._over_until, step))
            self._over_until = step + 1
        if self._missing:
            self._missing = {s for s in self._missing if s > step} if self._in_order else self._missing - {step}

    def place(self) -> IndexSteps:
        """Return which steps are done; ``first`` is never beyond what was drawn from the sampler."""
        over = self._over_until
        if not self._missing and self._step >= over:
            return IndexSteps(over, over)
        missing = tuple(sorted(self._missing))
        return IndexSteps(min(self._step, *missing[:1], self._over_until), self._over_until, missing)

    def is_ready(self) -> bool:
        return self._is_ready is None or self._is_ready()

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Return the task with its indices packed, unless they are plain values."""
        what = task.what
        plain = type(what) in _PLAIN or (type(what) is list and _PLAIN.issuperset(map(type, what)))
        return task if plain else worker.packed(task, what)

    def name(self, task: Task, sample: str, position: int) -> str:
        if not sample and position >= 0:
            index = next(itertools.islice(task.what, position, None), "?")
            sample = text_of_sample(index if type(index) is int and 0 <= index < 1 << 63 else repr_of(index)[:200])
        return f"{sample} of {self._dataset}" if sample else self._dataset


class ShardProgress(NamedTuple):
    """How far a shard has progressed."""

    number: int = 0
    """Number of its batches that are done."""
    fingerprint: int | None = 0
    """Fingerprint of these batches; None if unknown."""
    stand: ShardState | None = None
    """State before the last of them, if the dataset saves its state."""
    is_over: bool = False
    """Whether it has no more batches."""
    end: bytes | None = None
    """The state of the dataset after its end, if it saves one."""


class ShardTasks(TaskSource):
    """One task per batch of each worker's shard, in turn, until all shards are exhausted.

    A shard belongs to its slot: a replacement worker in that slot resumes it after the last batch that was returned.
    With ``reached``, shards start at the saved position. Unless ``in_order``, the next task goes to the worker with the
    fewest tasks, so that a slow worker does not hold up the others. Batches within a shard are always in order.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        epoch: int,
        seed: int,
        dataset: str,
        reached: Sequence[ShardProgress] = (),
        in_order: bool = True,
    ) -> None:
        self._epoch, self._seed, self._dataset, self._in_order = epoch, seed, dataset, in_order
        self._asked = False
        self._first_prints: dict[int, int | None] = {}
        self._num_workers = num_workers
        self._taken = list(reached) or [ShardProgress()] * num_workers
        """Progress of each shard as delivered to the user."""
        self._back = list(self._taken)
        """Progress of each shard as returned by its worker, which is ahead of delivery."""
        self._saved = {slot for slot, shard in enumerate(self._taken) if shard.number or shard.stand is not None}
        """Shards that resume from a saved state and have not returned a batch yet."""
        self._began = list(self._taken)
        self._over = {slot for slot, shard in enumerate(self._taken) if shard.is_over and shard.stand is None}
        """Shards that are exhausted or have failed. A shard that was saved with a dataset state is run to its end once
        more, so that the dataset gets its state back for the following epochs."""
        self._failed: dict[int, int] = {}
        """When each failed shard failed: the step or, if results are not delivered in order, the arrival number."""
        self._arrivals: dict[int, int] = {}
        """Arrival number of each returned step not delivered yet; kept only if results are not delivered in order."""
        self._num_arrivals = self._turn = 0
        active = set(range(num_workers)) - self._over
        self._step = min((self._began[slot].number * num_workers + slot for slot in active), default=0)
        self._informed_tokens: dict[int, int] = {}
        self._numbers = [shard.number for shard in self._taken]
        """The next batch number of each shard, if shards do not take turns."""
        self._under_way: list[set[int]] = [set() for _ in range(num_workers)]
        """Batches of each shard that were requested and not delivered, if shards do not take turns."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return a task for the next batch, and the slot that owns its shard."""
        if len(self._over) == self._num_workers:
            return None
        number, slot = self._in_turn() if self._in_order else self._of_the_idlest()
        step = number * self._num_workers + slot
        task = Task(epoch=self._epoch, step=step, seed=self._seed, what=Shard(number))
        return self._with_progress(task, slot) if number == self._began[slot].number else task, slot

    def _in_turn(self) -> tuple[int, int]:
        """Return the next batch and its shard, in turn. An exhausted shard is included: its task completes at once."""
        while True:
            step, self._step = self._step, self._step + 1
            number, slot = divmod(step, self._num_workers)
            if number >= self._began[slot].number:
                return number, slot

    def _of_the_idlest(self) -> tuple[int, int]:
        """Return the next batch of the shard with the fewest undelivered batches."""
        slots = [slot for slot in range(self._num_workers) if slot not in self._over]
        slot = min(slots, key=lambda s: (len(self._under_way[s]), self._numbers[s], s))
        number = self._numbers[slot]
        self._numbers[slot] += 1
        self._under_way[slot].add(number)
        return number, slot

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Add the progress of the shard if the worker is new to it."""
        if self._informed_tokens.get(worker.slot) == worker.token:
            return task
        self._informed_tokens[worker.slot] = worker.token
        return self._with_progress(task, worker.slot)

    def _with_progress(self, task: Task, slot: int) -> Task:
        back = self._back[slot]
        known = back.fingerprint if back.number == task.what.number else None
        shard = task.what._replace(
            fingerprint=known, stand=back.stand, is_saved=slot in self._saved, is_over=back.is_over
        )
        return task._replace(what=shard)

    def came_back(self, task: Task, result: Result, slot: int) -> DuplicateData | None:
        self._asked |= result.asked
        if not self._in_order:
            self._arrivals[task.step] = self._num_arrivals = self._num_arrivals + 1
        if result.ended:
            self._over.add(slot)
        elif result.failure is not None:
            self._fail(slot, task.step)
        if result.packed is None:
            return None
        self._saved.discard(slot)
        self._back[slot] = _reached(task.what.number, result)
        return self._compare(slot, result.fingerprint) if task.what.number == 0 else None

    def consume(self, result: Result) -> None:
        number, slot = divmod(result.step, self._num_workers)
        self._under_way[slot].discard(number)
        self._turn = result.step if self._in_order else self._arrivals.pop(result.step, self._turn)
        for failed in [s for s, when in self._failed.items() if when < self._turn]:
            # Iteration that continues after an error continues without that shard.
            self._taken[failed] = self._taken[failed]._replace(is_over=True)
        if result.packed is not None:
            self._taken[slot] = _reached(number, result)
        elif result.ended:
            self._taken[slot] = self._taken[slot]._replace(is_over=True, end=result.end or self._taken[slot].end)

    def place(self) -> tuple[ShardProgress, ...]:
        """Return the progress of each shard as delivered."""
        return tuple(self._taken)

    def name(self, task: Task, sample: str, position: int) -> str:  # noqa: ARG002
        return f"{sample} of {self._dataset}" if sample else self._dataset

    def is_over(self, slot: int | None) -> bool:
        return slot in self._over

    def beginning(self) -> tuple[ShardProgress, ...]:
        """Return where each shard started."""
        return tuple(self._began)

    def begun_again(self, ends: Mapping[int, bytes]) -> None:
        """Send each worker, with its next task, the progress of its shard or how the previous epoch ended."""
        self._informed_tokens.clear()
        for slot, state in ends.items():
            if self._taken[slot] == self._back[slot] == ShardProgress():
                self._taken[slot] = self._back[slot] = self._began[slot] = ShardProgress(
                    stand=ShardState(0, 0, state, True)
                )

    def give_up(self, slot: int) -> None:
        """End a shard: its later batches can only be reached through the one that kills its worker."""
        self._fail(slot, self._back[slot].number * self._num_workers + slot)

    def _fail(self, slot: int, step: int) -> None:
        self._over.add(slot)
        self._failed.setdefault(slot, step if self._in_order else self._num_arrivals)

    def _compare(self, slot: int, fingerprint: int | None) -> DuplicateData | None:
        """Return an error if two workers start with the same batch and the dataset never asked for its worker's ID."""
        others = [p for s, p in self._first_prints.items() if s != slot]
        self._first_prints[slot] = fingerprint
        if self._asked or fingerprint not in others:
            return None
        return DuplicateData(
            f"{self._dataset} yields the same samples in every worker: expected disjoint shards, got equal first "
            f"batches from two of its {self._num_workers} workers, and it never called get_worker_info(). Each sample "
            f"would be delivered {self._num_workers} times (duplicates)",
            hint="shard it in __iter__: info = torch.utils.data.get_worker_info(), then yield every "
            "info.num_workers-th sample starting at info.id; or use num_workers=1. If the duplicates are intended, "
            "call get_worker_info() to silence this check",
        )


def _reached(number: int, result: Result) -> ShardProgress:
    return ShardProgress(number + 1, result.fingerprint, result.stand, result.ended, result.end)
