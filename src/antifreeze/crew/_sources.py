"""Where the tasks of an epoch come from: the indices of a sampler, or the shares of an iterable dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from antifreeze.child import Result, Share, Task
from antifreeze.core import AntifreezeError, DuplicateData
from antifreeze.crew._member import Member

_PLAIN = frozenset({int, str, bytes, float, bool})


class Source(Protocol):
    """Gives the tasks of an epoch, one after the other."""

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task, and the worker that alone can make it, if so; None when there are no more."""
        ...

    def is_ready(self) -> bool:
        """Tell whether ``next`` will answer without waiting for anything."""
        ...

    def prepare(self, task: Task, member: Member) -> Task:
        """Return the task as it is sent: rows are packed only now."""
        ...

    def came_back(self, task: Task, result: Result, slot: int) -> AntifreezeError | None:
        """Hear of a result; return what is wrong with it, if anything."""
        ...

    def is_over(self, slot: int | None) -> bool:
        """Tell whether a worker's share has ended: what is still asked of it has been answered by that."""
        ...

    def give_up(self, slot: int) -> None:
        """Note that a task of a worker is poison: if its share leads through that, the share is over."""
        ...

    def begun_again(self) -> None:
        """Hear that workers know nothing any more of what was asked before."""
        ...

    def name(self, task: Task, sample: str, position: int) -> str:
        """Return in words what an error is about: a sample as the worker calls it, at this place in its batch."""
        ...


class IndexSource:
    """One task for each batch of indices, or for each index, that a sampler gives."""

    def __init__(self, indices: Iterator[Any], *, epoch: int, seed: int, dataset: str) -> None:
        self._indices, self._epoch, self._seed, self._dataset = indices, epoch, seed, dataset
        self._step = 0

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next task. Runs the sampler, in the thread that asks for batches."""
        try:
            what = next(self._indices)
        except StopIteration:
            return None
        task = Task(epoch=self._epoch, step=self._step, seed=self._seed, what=what)
        self._step += 1
        return task, None

    def is_ready(self) -> bool:
        """Tell whether ``next`` answers at once."""
        return True

    def prepare(self, task: Task, member: Member) -> Task:
        """Return the task as it can be sent: an index may be anything."""
        what = task.what
        plain = type(what) in _PLAIN or (type(what) is list and _PLAIN.issuperset(map(type, what)))
        return task if plain else member.packed(task, what)

    def came_back(self, task: Task, result: Result, slot: int) -> None:
        """Indices do not depend on results."""

    def is_over(self, slot: int | None) -> bool:  # noqa: ARG002
        """Indices are for any worker."""
        return False

    def give_up(self, slot: int) -> None:
        """One index leads to no other."""

    def begun_again(self) -> None:
        """Indices are told with each task."""

    def name(self, task: Task, sample: str, position: int) -> str:  # noqa: ARG002
        """Return the sample and its dataset."""
        return _named(sample, self._dataset)


class ShareSource:
    """Batch after batch of each worker's share, in turn, until all shares have ended.

    A share belongs to its slot: whoever is born there goes on with it, after the last batch that has come back.
    """

    def __init__(self, num_workers: int, *, epoch: int, seed: int, dataset: str) -> None:
        self._epoch, self._seed, self._dataset = epoch, seed, dataset
        self._asked = False
        self._first_prints: dict[int, int] = {}
        self._over: set[int] = set()
        """Shares that have no more batches, or that have failed."""
        self._step = 0
        self._num_workers = num_workers
        self._prints = [0] * num_workers
        self._states: list[Any] = [None] * num_workers
        self._told: dict[int, int] = {}

    def next(self) -> tuple[Task, int | None] | None:
        """Return the next batch to ask for, and the worker whose share it is of."""
        if len(self._over) == self._num_workers:
            return None
        number, slot = divmod(self._step, self._num_workers)
        task = Task(epoch=self._epoch, step=self._step, seed=self._seed, what=Share(number, 0))
        self._step += 1
        return task, slot

    def is_ready(self) -> bool:
        """Tell whether ``next`` answers at once."""
        return True

    def prepare(self, task: Task, member: Member) -> Task:
        """Tell a worker that is new to the share how far it had come."""
        if self._told.get(member.slot) == member.token:
            return task
        self._told[member.slot] = member.token
        share = task.what._replace(fingerprint=self._prints[member.slot], state=self._states[member.slot])
        return task._replace(what=share)

    def came_back(self, task: Task, result: Result, slot: int) -> DuplicateData | None:
        """Remember how far the share has come."""
        self._asked |= result.asked
        if result.ended or result.failure is not None:
            self._over.add(slot)
        elif result.failure is None and result.packed is not None:
            self._prints[slot] = result.fingerprint
            self._states[slot] = result.state
            if task.what.number == 0:
                return self._compare(slot, result.fingerprint)
        return None

    def name(self, task: Task, sample: str, position: int) -> str:  # noqa: ARG002
        """Return the sample and its dataset."""
        return _named(sample, self._dataset)

    def is_over(self, slot: int | None) -> bool:
        """Tell whether a share has ended."""
        return slot in self._over

    def begun_again(self) -> None:
        """Tell workers anew how far each share had come."""
        self._told.clear()

    def give_up(self, slot: int) -> None:
        """End a share: what comes later in it can only be reached through what kills its worker."""
        self._over.add(slot)

    def _compare(self, slot: int, fingerprint: int) -> DuplicateData | None:
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


def _named(sample: str, dataset: str) -> str:
    return f"{sample} of {dataset}" if sample else dataset
