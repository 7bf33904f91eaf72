"""Where the tasks of an epoch come from: the indices of a sampler, or the shares of an iterable dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from antifreeze.core import AntifreezeError, DuplicateData
from antifreeze.pool._messages import named, sample_at
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.worker import Result, Shard, ShardState, Task

_PLAIN = frozenset({int, str, bytes, float, bool})


class TaskSource(Protocol):
    """Gives the tasks of an epoch, one after the other."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task, and the worker that alone can make it, if so; None when there are no more."""
        ...

    def is_ready(self) -> bool:
        """Tell whether ``next`` will answer without waiting for anything."""
        ...

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Return the task as it is sent: rows are packed only now."""
        ...

    def came_back(self, task: Task, result: Result, slot: int) -> AntifreezeError | None:
        """Hear of a result; return what is wrong with it, if anything."""
        ...

    def consume(self, result: Result) -> None:
        """Hear that a result is handed over, or that there is nothing in it to hand over."""
        ...

    def is_over(self, slot: int | None) -> bool:
        """Tell whether a worker's share has ended: what is still asked of it has been answered by that."""
        ...

    def give_up(self, slot: int) -> None:
        """Note that a task of a worker is poison: if its share leads through that, the share is over."""
        ...

    def begun_again(self, ends: Mapping[int, bytes]) -> None:
        """Hear that workers know nothing any more of what was asked before.

        ``ends`` are the states in which the datasets of workers that stayed have ended the epoch before, by slot.
        """
        ...

    def name(self, task: Task, sample: str, position: int) -> str:
        """Return in words what an error is about: a sample as the worker calls it, at this place in its batch."""
        ...

    def location(self, task: Task, sample: str, position: int) -> str:
        """Return the same with the batch that it is in."""
        ...


class IndexSteps(NamedTuple):
    """Which steps of an epoch are over: all before ``first``, and those before ``until`` that are not missing."""

    first: int = 0
    until: int = 0
    missing: tuple[int, ...] = ()


class IndexTasks:
    """One task for each batch of indices, or for each index, that a sampler gives.

    With ``over``, the indices begin with those of its first step, and steps that are over are not made again.
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
        """Tells whether another step may be taken from the sampler already; None if at any time."""
        self._indices, self._epoch, self._seed, self._dataset = indices, epoch, seed, dataset
        self._step, self._until, self._in_order = over.first, over.until, in_order
        self._to_do: Collection[int] = frozenset(over.missing)
        """Steps before ``until`` that are to be made."""
        self._over_until, self._missing = over.until, set(over.missing)

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task. Runs the sampler, in the thread that asks for batches."""
        while True:
            try:
                what = next(self._indices)
            except StopIteration:
                return None
            step, self._step = self._step, self._step + 1
            if step >= self._until or step in self._to_do:
                return Task(self._epoch, step, self._seed, what), None

    def consume(self, result: Result) -> None:
        """Note that a step is over. In order, so are those before it: one that has failed is not tried again."""
        step = result.step
        if step >= self._over_until:
            if not self._in_order:
                self._missing.update(range(self._over_until, step))
            self._over_until = step + 1
        if self._missing:
            self._missing = {s for s in self._missing if s > step} if self._in_order else self._missing - {step}

    def place(self) -> IndexSteps:
        """Return which steps are over, from a first one that is not beyond what was drawn from the sampler."""
        over = self._over_until
        if not self._missing and self._step >= over:
            return IndexSteps(over, over)
        missing = tuple(sorted(self._missing))
        return IndexSteps(min(self._step, *missing[:1], self._over_until), self._over_until, missing)

    def is_ready(self) -> bool:
        """True if the sampler may be asked now."""
        return self._is_ready is None or self._is_ready()

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Return the task as it can be sent: an index may be anything."""
        what = task.what
        plain = type(what) in _PLAIN or (type(what) is list and _PLAIN.issuperset(map(type, what)))
        return task if plain else worker.packed(task, what)

    def came_back(self, task: Task, result: Result, slot: int) -> None:
        """Indices do not depend on results."""

    def is_over(self, slot: int | None) -> bool:  # noqa: ARG002
        """Indices are for any worker."""
        return False

    def give_up(self, slot: int) -> None:
        """One index leads to no other."""

    def begun_again(self, ends: Mapping[int, bytes]) -> None:
        """Indices are told with each task."""

    def name(self, task: Task, sample: str, position: int) -> str:
        """Return the sample and its dataset."""
        if not sample and position >= 0:
            sample = sample_at(task.what, position)
        return named(sample, self._dataset)

    def location(self, task: Task, sample: str, position: int) -> str:
        """Return the batch, the sample and its dataset."""
        return f"batch {task.step}, {self.name(task, sample, position)}"


class ShardProgress(NamedTuple):
    """How far a share has come."""

    number: int = 0
    """How many of its batches are over."""
    fingerprint: int | None = 0
    """Of these; None if it is not known."""
    stand: ShardState | None = None
    """Where it stood before the last of them, if the dataset has a state of its own."""
    is_over: bool = False
    """Whether it has no more."""
    end: bytes | None = None
    """The state of the dataset after that, if it has one."""


class ShardTasks:
    """Batch after batch of each worker's share, in turn, until all shares have ended.

    A share belongs to its slot: whoever is born there goes on with it, after the last batch that has come back. With
    ``reached``, shares begin after what was saved. Unless ``in_order``, the next task is for the worker that has the
    fewest, so that one that is slow keeps no other waiting. Within a shard, batches are in order in any case.
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
        """How far each share has come for whoever takes the batches."""
        self._back = list(self._taken)
        """How far it has come for its worker, who is ahead of that."""
        self._saved = {slot for slot, share in enumerate(self._taken) if share.number or share.stand is not None}
        """Shares that go on from what was saved, and of which nothing has come back yet."""
        self._from = [share.number for share in self._taken]
        self._began = list(self._taken)
        self._over = {slot for slot, share in enumerate(self._taken) if share.is_over and share.stand is None}
        """Shares that have no more batches, or that have failed. One that was saved with a state of the dataset's own
        ends once more: the dataset is given its state, for the epochs that follow."""
        self._failed: dict[int, int] = {}
        """When shares have failed: at which step, or if results are taken as they come, as which result."""
        self._arrivals: dict[int, int] = {}
        """As which result each step came back that was not taken yet; kept only if results are taken as they come."""
        self._num_arrivals = self._turn = 0
        going_on = set(range(num_workers)) - self._over
        self._step = min((self._from[slot] * num_workers + slot for slot in going_on), default=0)
        self._told: dict[int, int] = {}
        self._numbers = list(self._from)
        """The next batch to ask of each share, if they are not asked in turn."""
        self._under_way: list[set[int]] = [set() for _ in range(num_workers)]
        """What was asked of each share and not taken, if they are not asked in turn."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next batch to ask for, and the worker whose share it is of."""
        if len(self._over) == self._num_workers:
            return None
        number, slot = self._in_turn() if self._in_order else self._of_the_idlest()
        step = number * self._num_workers + slot
        task = Task(epoch=self._epoch, step=step, seed=self._seed, what=Shard(number))
        return self._informed(task, slot) if number == self._from[slot] else task, slot

    def _in_turn(self) -> tuple[int, int]:
        """Return which batch of which share is next. One that is over is asked, too, and answered by that."""
        while True:
            step, self._step = self._step, self._step + 1
            number, slot = divmod(step, self._num_workers)
            if number >= self._from[slot]:
                return number, slot

    def _of_the_idlest(self) -> tuple[int, int]:
        """Return the next batch of the share of which the fewest were asked and not taken."""
        slots = [slot for slot in range(self._num_workers) if slot not in self._over]
        slot = min(slots, key=lambda s: (len(self._under_way[s]), self._numbers[s], s))
        number = self._numbers[slot]
        self._numbers[slot] += 1
        self._under_way[slot].add(number)
        return number, slot

    def is_ready(self) -> bool:
        """Tell whether ``next`` answers at once."""
        return True

    def prepare(self, task: Task, worker: WorkerHandle) -> Task:
        """Tell a worker that is new to the share how far it had come."""
        if self._told.get(worker.slot) == worker.token:
            return task
        self._told[worker.slot] = worker.token
        return self._informed(task, worker.slot)

    def _informed(self, task: Task, slot: int) -> Task:
        back = self._back[slot]
        known = back.fingerprint if back.number == task.what.number else None
        share = task.what._replace(
            fingerprint=known, stand=back.stand, is_saved=slot in self._saved, is_over=back.is_over
        )
        return task._replace(what=share)

    def came_back(self, task: Task, result: Result, slot: int) -> DuplicateData | None:
        """Remember how far the share has come."""
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
        """Remember how far the share has come for whoever takes its batches."""
        number, slot = divmod(result.step, self._num_workers)
        self._under_way[slot].discard(number)
        self._turn = result.step if self._in_order else self._arrivals.pop(result.step, self._turn)
        for failed in [s for s, when in self._failed.items() if when < self._turn]:
            # Whoever asks on after an error goes on without that share.
            self._taken[failed] = self._taken[failed]._replace(is_over=True)
        if result.packed is not None:
            self._taken[slot] = _reached(number, result)
        elif result.ended:
            self._taken[slot] = self._taken[slot]._replace(is_over=True, end=result.end or self._taken[slot].end)

    def place(self) -> tuple[ShardProgress, ...]:
        """Return how far each share has come for whoever takes its batches."""
        return tuple(self._taken)

    def name(self, task: Task, sample: str, position: int) -> str:  # noqa: ARG002
        """Return the sample and its dataset."""
        return named(sample, self._dataset)

    def location(self, task: Task, sample: str, position: int) -> str:
        """Return the batch, the sample and its dataset."""
        return f"batch {task.step}, {self.name(task, sample, position)}"

    def is_over(self, slot: int | None) -> bool:
        """Tell whether a share has ended."""
        return slot in self._over

    def beginning(self) -> tuple[ShardProgress, ...]:
        """Return from where each share began."""
        return tuple(self._began)

    def begun_again(self, ends: Mapping[int, bytes]) -> None:
        """Tell each worker with its next task how far its share had come, or how the epoch before had ended."""
        self._told.clear()
        for slot, state in ends.items():
            if self._taken[slot] == self._back[slot] == ShardProgress():
                self._taken[slot] = self._back[slot] = self._began[slot] = ShardProgress(
                    stand=ShardState(0, 0, state, True)
                )

    def give_up(self, slot: int) -> None:
        """End a share: what comes later in it can only be reached through what kills its worker."""
        self._fail(slot, self._back[slot].number * self._num_workers + slot)

    def _fail(self, slot: int, step: int) -> None:
        self._over.add(slot)
        self._failed.setdefault(slot, step if self._in_order else self._num_arrivals)

    def _compare(self, slot: int, fingerprint: int | None) -> DuplicateData | None:
        """Tell whether two workers begin with the same batch although nobody has asked which share is its own."""
        others = [p for s, p in self._first_prints.items() if s != slot]
        self._first_prints[slot] = fingerprint
        if self._asked or fingerprint not in others:
            return None
        return DuplicateData(
            f"{self._dataset} gives every worker the same samples: the first batches of two of its {self._num_workers} "
            f"workers are equal, and it has not asked which share is its own. Each sample would arrive "
            f"{self._num_workers} times (duplicates)",
            hint="shard it in __iter__: info = torch.utils.data.get_worker_info(), then yield every "
            "info.num_workers-th sample from info.id on; or use num_workers=1. If it is meant, asking is enough",
        )


def _reached(number: int, result: Result) -> ShardProgress:
    return ShardProgress(number + 1, result.fingerprint, result.stand, result.ended, result.end)
