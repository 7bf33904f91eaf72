"""What workers run: samples of a map-style dataset, or the share of an iterable one, made into batches."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import cloudpickle

from antifreeze.child import _worker_info
from antifreeze.child._again import NotAsSaved, NotTheSame
from antifreeze.child._collate import default_collate, default_convert, explain
from antifreeze.child._desk import Desk
from antifreeze.child._failures import UserError
from antifreeze.child._messages import Share, Task
from antifreeze.transport import Stage, dump, fingerprint


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


class IterableProgram(Samples):
    """Draws batches from this worker's copy of an iterable dataset.

    A worker that takes over a share goes on where the last batch was delivered: from the dataset's own state if it
    has one, else by making the earlier batches again. The fingerprint of those tells whether they are the same; if not,
    the dataset is not deterministic, and going on would lose or repeat samples. A run that is resumed does the same.
    """

    def __init__(self, *arguments: Any, batch_size: int | None, drop_last: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._batch_size, self._drop_last = batch_size, drop_last
        self._epoch = -1
        self._samples: Iterator[Any] = iter(())
        self._number = 0
        self._is_seeded = False
        self.fingerprint = 0
        self.ended = False
        """Whether it is known that the share has no more batches."""
        self.in_trainer = False
        """Without workers no batch is taken apart, so that there is no fingerprint."""

    def make(self, task: Task, desk: Desk) -> Any:
        """Return the batch with the number that the task asks for."""
        share: Share = task.what
        if task.epoch != self._epoch or share.number < self._number:
            self._begin(task, desk)
        self.ended |= share.is_over
        if self.ended:
            raise Ended
        if self._number < share.number:
            self._replay(task, share, desk)
        return self._next(task, desk)

    def _replay(self, task: Task, share: Share, desk: Desk) -> None:
        """Make the batches again that a worker before this one has delivered."""
        try:
            while self._number < share.number:
                desk.sample(Stage.REPLAY, f"batch {self._number} of share {desk.slot}, again", 0)
                with contextlib.suppress(Nothing):
                    batch = self._next(task, desk)
                    if share.fingerprint is not None or not self.in_trainer:
                        self.seen(*dump(batch))
                desk.clear(desk.step)  # what was skipped then was reported then
        except Ended:
            self.fingerprint = -1
        if share.fingerprint is not None and self.fingerprint != share.fingerprint:
            kind = NotAsSaved if share.is_saved else NotTheSame
            raise UserError(f"iterating the dataset again (share {desk.slot})", kind(desk.slot, share.number))

    def seen(self, head: bytes, buffers: list[Any]) -> None:
        """Take a batch, as it was taken apart, into the fingerprint of the share."""
        self.fingerprint = fingerprint(head, buffers, self.fingerprint)

    def state(self) -> bytes | None:
        """Return the dataset's and its iterator's own states, if they have them."""
        owners = {"dataset": self.dataset, "iterator": self._samples}
        if self._samples is self.dataset:
            del owners["dataset"]
        try:
            states = {name: owner.state_dict() for name, owner in owners.items() if has_state(owner)}
            return sealed_state(states) if states else None
        except BaseException as error:
            raise UserError("state_dict() of the dataset", error) from error

    def _begin(self, task: Task, desk: Desk) -> None:
        share: Share = task.what
        _worker_info.update(dataset=self.dataset, seed=task.seed + desk.slot)
        self._epoch, self._number, self.fingerprint, self.ended = task.epoch, 0, 0, False
        self._seed(task, 0, desk)
        self._is_seeded = True
        try:
            states = {} if share.state is None else opened_state(share.state)
            if "dataset" in states and has_state(self.dataset):
                self.dataset.load_state_dict(states["dataset"])
                self._number = share.after
            desk.sample(Stage.FETCH, f"iter(dataset), share {desk.slot}", 0)
            self._samples = iter(self.dataset)
            if "iterator" in states and has_state(self._samples):
                self._samples.load_state_dict(states["iterator"])  # type: ignore[attr-defined]
                self._number = share.after
            if self._number:
                self.fingerprint = share.fingerprint or 0
        except BaseException as error:
            self._epoch = -1
            raise UserError("iter(dataset)", error) from error

    def _seed(self, task: Task, number: int, desk: Desk) -> None:
        desk.seed(task.seed, 1 + desk.slot, number)

    def _next(self, task: Task, desk: Desk) -> Any:
        """Return the next batch of the share."""
        # The first batch goes on with the random numbers that iter() began with.
        if self._number or not self._is_seeded:
            self._seed(task, self._number, desk)
        self._is_seeded = False
        first = self._number * (self._batch_size or 1)
        samples, numbers = [], []
        began_s = time.perf_counter()
        for number in desk.samples(Stage.FETCH, range(first, first + (self._batch_size or 1))):
            try:
                samples.append(next(self._samples))
            except StopIteration:
                break
            except BaseException as error:  # noqa: BLE001  border: user code may raise anything
                alive = not inspect.isgenerator(self._samples)  # a generator that has raised is over
                name = f"sample {number} of share {desk.slot}"
                desk.failed(UserError("next(dataset)", error, sample=name, position=number - first, can_skip=alive))
                continue
            numbers.append(number)
        desk.add(Stage.FETCH, time.perf_counter() - began_s)
        full = len(samples) + len(desk.skipped) == (self._batch_size or 1)
        self.ended = not full
        if not full and (self._drop_last or not samples):
            raise Ended
        self._number += 1
        if not samples:
            raise Nothing
        return self.collate(samples, numbers, desk) if self.batched else self.convert(samples[0], numbers[0], desk)


def has_state(owner: object) -> bool:
    """Tell whether an object of the user's can save and load where it stands."""
    return callable(getattr(owner, "state_dict", None)) and callable(getattr(owner, "load_state_dict", None))


def sealed_state(states: dict[str, Any]) -> bytes:
    """Return states of the user's objects as they travel between processes."""
    return bytes(cloudpickle.dumps(states))


def opened_state(state: bytes) -> dict[str, Any]:
    """Return states that come from a worker, or go to one."""
    states: dict[str, Any] = cloudpickle.loads(state)
    return states


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
