"""The programs that workers run: they make batches from the samples of a dataset."""

from __future__ import annotations

import itertools
import operator
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antifreeze.ipc import Stage, repr_of
from antifreeze.worker import _worker_info
from antifreeze.worker._collate import default_collate, default_convert
from antifreeze.worker._collate_diagnosis import explain
from antifreeze.worker._task_context import TaskContext, UserError
from antifreeze.worker._wire import Task

_NAMED_SAMPLES = 8
"""Number of samples named by an error that is about a whole batch."""


class Ended(Exception):
    """The shard of an iterable dataset is exhausted."""


class Nothing(Exception):
    """Every sample of the batch was skipped."""


class Program(Protocol):
    """Makes batches in a worker process. It is sent once, when the worker is spawned."""

    def start(self, context: TaskContext, seed: int) -> None:
        """Prepare; called once in each worker."""
        ...

    def make(self, task: Task, context: TaskContext) -> Any:
        """Return the batch of a task. Raises ``UserError``, ``Ended`` or ``Nothing``."""
        ...


def start_worker(context: TaskContext, seed: int, dataset: Any, worker_init_fn: Callable[[int], None] | None) -> None:
    """Set up ``get_worker_info`` for this worker, and run the user's ``worker_init_fn`` if there is one."""
    _worker_info.install(context.slot, context.num_workers, seed + context.slot, dataset)
    if worker_init_fn is None:
        return
    context.seed(seed, 0, context.slot)
    context.at(Stage.INIT)
    try:
        worker_init_fn(context.slot)
    except BaseException as error:
        raise UserError(f"worker_init_fn({context.slot})", error) from error


class Samples:
    """The common part of both kinds of program: ``worker_init_fn`` and collating."""

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

    def start(self, context: TaskContext, seed: int) -> None:
        """Run the user's ``worker_init_fn``."""
        start_worker(context, seed, self.dataset, self._worker_init_fn)

    def collate(self, samples: Any, indices: Sequence[Any], context: TaskContext) -> Any:
        """Return a batch of the samples with these indices; an error names the samples that do not match."""
        context.num_samples = len(samples) if isinstance(samples, list | tuple) else operator.length_hint(indices)
        began_s = context.begin(Stage.COLLATE) if context.is_watched else time.perf_counter()
        try:
            return (self._collate_fn or default_collate)(samples)
        except BaseException as error:
            what = "collating" if self._collate_fn is None else f"collate_fn ({_name(self._collate_fn)})"
            why = None
            if isinstance(samples, list | tuple) and len(samples) == len(indices):
                why = explain(samples, [f"sample {i}" for i in indices])
            raise UserError(what, error, explanation=why or "") from error
        finally:
            context.add(Stage.COLLATE, time.perf_counter() - began_s)

    def convert(self, sample: Any, index: Any, context: TaskContext) -> Any:
        """Return a converted sample, for a loader that does not make batches."""
        context.num_samples = 1
        began_s = context.begin(Stage.COLLATE)
        try:
            return (self._collate_fn or default_convert)(sample)
        except BaseException as error:
            raise UserError("collate_fn", error, sample=f"sample {index}", position=0, can_skip=True) from error
        finally:
            context.add(Stage.COLLATE, time.perf_counter() - began_s)


class MapProgram(Samples):
    """Reads samples of a dataset by their indices. Any worker can run any task at any time.

    As in torch, a dataset with ``__getitems__`` returns all samples of a batch in one call, and its result is passed to
    the collate function unchanged: a list, a dict of columns, a tensordict. Which sample made that call fail is
    unknown, so with ``one_by_one`` (set if failing samples can be skipped) each sample is read separately.
    """

    def __init__(self, *arguments: Any, one_by_one: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._one_by_one = one_by_one

    def make(self, task: Task, context: TaskContext) -> Any:
        """Return the batch of the task's indices, or the one sample of its index."""
        context.seed(task.seed, 0, task.step)
        if not self.batched:
            samples, _ = self._fetch([task.what], task.skip, context)
            if not samples:
                raise Nothing
            return self.convert(samples[0], task.what, context)
        indices = task.what
        get_many = None if task.skip else self._get_many()
        if get_many is not None:
            return self.collate(self._fetch_many(get_many, indices, context), indices, context)
        samples, kept = self._fetch(indices, task.skip, context)
        if not samples and len(indices):
            raise Nothing
        return self.collate(samples, kept, context)

    def _get_many(self) -> Callable[[Any], Any] | None:
        """Return the dataset's ``__getitems__`` if it should be used."""
        get_many: Callable[[Any], Any] | None = getattr(self.dataset, "__getitems__", None)
        if not get_many or _is_plain_subset(self.dataset):
            return None
        return None if self._one_by_one and _has_getitem(self.dataset) else get_many

    def _fetch(
        self, indices: Sequence[Any], skip: tuple[int, ...], context: TaskContext
    ) -> tuple[list[Any], Sequence[Any]]:
        """Return the samples and their indices, without those that were skipped."""
        samples: list[Any] = []
        began_s = time.perf_counter()
        dataset, append, without = self.dataset, samples.append, set(skip)
        is_plain = not skip and not context.is_watched  # then there is no heartbeat, and the position can be counted
        for index in indices if is_plain else context.samples(Stage.FETCH, indices, skip):
            try:
                append(dataset[index])
            except BaseException as error:  # noqa: BLE001  border: user code may raise anything, sys.exit among it
                said, position = repr_of(index), len(samples) + len(without) if is_plain else context.position
                name = f"sample {said}"
                context.failed(UserError(f"dataset[{said}]", error, sample=name, position=position, can_skip=True))
                without.add(position)
        context.add(Stage.FETCH, time.perf_counter() - began_s)
        return samples, [index for i, index in enumerate(indices) if i not in without] if without else indices

    def _fetch_many(self, get_many: Callable[[Any], Any], indices: Any, context: TaskContext) -> Any:
        """Return all samples of a batch from one call, in whatever form the dataset returns them."""
        context.sample(Stage.FETCH, _all_of(indices, 1), 0)
        began_s = time.perf_counter()
        try:
            return get_many(indices)
        except BaseException as error:
            raise UserError("dataset.__getitems__", error, sample=_all_of(indices)) from error
        finally:
            context.add(Stage.FETCH, time.perf_counter() - began_s)


def _is_plain_subset(dataset: Any) -> bool:
    """True for torch's ``Subset`` of a dataset without ``__getitems__``: it reads sample by sample itself.

    Read one by one, it yields the same samples, and a sample that fails or stalls can be named.
    """
    subset = getattr(sys.modules.get("torch.utils.data"), "Subset", None)
    while subset is not None and isinstance(dataset, subset):
        kind = type(dataset)
        if kind.__getitems__ is not subset.__getitems__ or kind.__getitem__ is not subset.__getitem__:
            return False
        dataset = dataset.dataset
        if not callable(getattr(dataset, "__getitems__", None)):
            return True
    return False


def _has_getitem(dataset: Any) -> bool:
    """True if the dataset can return single samples: the method of torch's base class only raises."""
    base = getattr(sys.modules.get("torch.utils.data"), "Dataset", None)
    own = getattr(type(dataset), "__getitem__", None)
    return own is not None and own is not getattr(base, "__getitem__", None)


def _all_of(indices: Any, max_names: int = _NAMED_SAMPLES) -> str:
    """Return the name of a whole batch in messages."""
    names = [repr_of(index)[:80] for index in itertools.islice(indices, max_names)]
    count = operator.length_hint(indices)
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"sample{'s' if count > 1 else ''} {', '.join(names)}{more}" if names else "no samples"


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
