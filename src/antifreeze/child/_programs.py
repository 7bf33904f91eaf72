"""What workers run: samples of a dataset, made into batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antifreeze.child import _worker_info
from antifreeze.child._collate import default_collate, default_convert, explain
from antifreeze.child._desk import Desk
from antifreeze.child._failures import UserError
from antifreeze.child._messages import Task
from antifreeze.transport import Stage


class Ended(Exception):
    """The share of an iterable dataset has no more batches."""


class Nothing(Exception):
    """Every sample of the batch was left out."""


class Program(Protocol):
    """Makes batches in a worker process. It travels there once, when the worker is born."""

    def start(self, desk: Desk, seed: int) -> None:
        """Get ready; called once in each worker."""
        ...

    def make(self, task: Task, desk: Desk) -> Any:
        """Return the batch of a task. Raises ``UserError``, ``Ended`` or ``Nothing``."""
        ...


class Samples:
    """What both kinds of dataset share: ``worker_init_fn``, collating, and who is told what about this worker."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        *,
        batched: bool,
        worker_init_fn: Callable[[int], None] | None,
    ) -> None:
        self.dataset, self.batched = dataset, batched
        self._collate_fn, self._worker_init_fn = collate_fn, worker_init_fn

    def start(self, desk: Desk, seed: int) -> None:
        """Run the user's ``worker_init_fn``."""
        _worker_info.install(desk.slot, desk.num_workers, seed + desk.slot, self.dataset)
        if self._worker_init_fn is None:
            return
        desk.seed(seed, 0, desk.slot)
        desk.at(Stage.INIT)
        try:
            self._worker_init_fn(desk.slot)
        except BaseException as error:
            raise UserError(f"worker_init_fn({desk.slot})", error) from error

    def collate(self, samples: list[Any], indices: Sequence[Any], desk: Desk) -> Any:
        """Return a batch of the samples; what does not fit together is named."""
        desk.num_samples = len(samples)
        began_s = desk.begin(Stage.COLLATE)
        try:
            return (self._collate_fn or default_collate)(samples)
        except BaseException as error:
            what = "collating" if self._collate_fn is None else f"collate_fn ({_name(self._collate_fn)})"
            raise UserError(
                what, error, explanation=explain(samples, [f"sample {i}" for i in indices]) or ""
            ) from error
        finally:
            desk.add(Stage.COLLATE, time.perf_counter() - began_s)

    def convert(self, sample: Any, index: Any, desk: Desk) -> Any:
        """Return a sample of a loader that does not make batches."""
        desk.num_samples = 1
        began_s = desk.begin(Stage.COLLATE)
        try:
            return (self._collate_fn or default_convert)(sample)
        except BaseException as error:
            raise UserError("collate_fn", error, sample=f"sample {index}", position=0, can_skip=True) from error
        finally:
            desk.add(Stage.COLLATE, time.perf_counter() - began_s)


class MapProgram(Samples):
    """Asks a dataset for samples by their indices. Any worker can make any task at any time."""

    def make(self, task: Task, desk: Desk) -> Any:
        """Return the batch of the task's indices, or the one sample of its index."""
        desk.seed(task.seed, 0, task.step)
        if not self.batched:
            samples, _ = self._fetch([task.what], task.skip, desk)
            if not samples:
                raise Nothing
            return self.convert(samples[0], task.what, desk)
        indices = task.what
        get_many = getattr(self.dataset, "__getitems__", None)
        many = self._fetch_many(get_many, indices, desk) if get_many and not task.skip else None
        if many is not None:
            samples, kept = many, indices
        else:
            samples, kept = self._fetch(indices, task.skip, desk)
        if not samples and len(indices):
            raise Nothing
        return self.collate(samples, kept, desk)

    def _fetch(self, indices: Sequence[Any], skip: tuple[int, ...], desk: Desk) -> tuple[list[Any], Sequence[Any]]:
        """Return the samples, and the indices that they have."""
        samples: list[Any] = []
        began_s = time.perf_counter()
        dataset, append, without = self.dataset, samples.append, set(skip)
        for index in desk.samples(Stage.FETCH, indices, skip):
            try:
                append(dataset[index])
            except BaseException as error:  # noqa: BLE001  border: user code may raise anything, sys.exit among it
                name, position = f"sample {index!r}", desk.position
                desk.failed(UserError(f"dataset[{index!r}]", error, sample=name, position=position, can_skip=True))
                without.add(position)
        desk.add(Stage.FETCH, time.perf_counter() - began_s)
        return samples, [index for i, index in enumerate(indices) if i not in without] if without else indices

    def _fetch_many(self, get_many: Callable[[Any], Any], indices: Any, desk: Desk) -> list[Any] | None:
        """Return all samples at once; None if that fails: asked one by one, the one that fails can be named."""
        desk.sample(Stage.FETCH, f"{len(indices)} samples from {indices[0]!r}" if len(indices) else "no samples", 0)
        began_s = time.perf_counter()
        try:
            return list(get_many(indices))
        except BaseException as error:
            if not hasattr(type(self.dataset), "__getitem__"):
                raise UserError("dataset.__getitems__", error) from error
            return None
        finally:
            desk.add(Stage.FETCH, time.perf_counter() - began_s)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
