"""The program for an iterable dataset: makes the batches of one shard, from its start or a saved position."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from antifreeze.core import get_logger
from antifreeze.ipc import Stage, dump, fingerprint
from antifreeze.worker import _worker_info
from antifreeze.worker._programs import Ended, Nothing, Samples
from antifreeze.worker._task_context import TaskContext, UserError
from antifreeze.worker._wire import FailureReason, Shard, ShardState, Task

logger = get_logger()


class IterableProgram(Samples):
    """Draws batches from this worker's copy of an iterable dataset.

    A worker that takes over a shard resumes after the last delivered batch: from the dataset's saved state if there is
    one, otherwise by replaying the earlier batches. Their fingerprint shows whether they are the same; if not, the
    dataset is not deterministic, and continuing would lose or repeat samples. A resumed run does the same.
    """

    def __init__(self, *arguments: Any, batch_size: int | None, drop_last: bool, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._batch_size, self._drop_last = batch_size, drop_last
        self._epoch = -1
        self._samples: Iterator[Any] = iter(())
        self._number = 0
        self._is_seeded = False
        self._stand: ShardState | None = None
        self._is_to_forget = False
        """True while a loaded state would also apply to the next iteration."""
        self._is_used = False
        """True once this process has iterated over the dataset, whose state is then that of a later epoch."""
        self.fingerprint = 0
        self.ended = False
        """True once the shard is known to be exhausted."""
        self.end: bytes | None = None
        """The state of the dataset after its end, if it saves one."""
        self.in_trainer = False
        """True without workers: batches are not pickled, so there is no fingerprint."""

    def make(self, task: Task, context: TaskContext) -> Any:
        """Return the batch with the number that the task requests."""
        shard: Shard = task.what
        if task.epoch != self._epoch or shard.number < self._number:
            self._resume(task, context)
        if self._number < shard.number and not self.ended:
            self._replay(task, context)
            if shard.fingerprint is not None and self.fingerprint != shard.fingerprint:
                raise _replay_failed(shard, context.slot)
        if shard.is_over and not self.ended:
            self._finish(task, context)
        if self.ended:
            raise Ended
        self._stand = self._current_state()
        return self._next(task, context)

    def facts(self) -> dict[str, Any]:
        """Return what the trainer needs so that another worker can resume after this batch."""
        return {"fingerprint": self.fingerprint, "stand": self._stand, "ended": self.ended, "end": self.end}

    def seen(self, head: bytes, buffers: list[Any]) -> None:
        """Add a pickled batch to the fingerprint of the shard."""
        self.fingerprint = fingerprint(head, buffers, self.fingerprint)

    # -- startup ---------------------------------------------------------------------------------------------------

    def _resume(self, task: Task, context: TaskContext) -> None:
        """Start the shard, or resume from the dataset's saved state if that reproduces what was delivered.

        States need not be exact: many leave out the shuffle buffer. So the state from before the last batch is loaded,
        and that batch is made again. If it differs, and differs in the same way when tried once more, the state is
        useless, and the shard is replayed from its start. If it differs each time, its content is random, which says
        nothing about the state.
        """
        shard: Shard = task.what
        if shard.stand is None or shard.stand.is_end or shard.fingerprint is None:
            # Only a new worker needs the state in which the previous epoch ended; the others have it.
            has_it = shard.stand is not None and shard.stand.is_end and self._is_used and not shard.is_saved
            self._begin(task, None if has_it else shard.stand, context)
            return
        pristine: bytes | None = None  # loading a state cannot be undone
        with contextlib.suppress(Exception):  # border: the user's reducers
            pristine = cloudpickle.dumps(self.dataset)
        found = [self._resumed_fingerprint(task, context)]
        if found[0] != shard.fingerprint and pristine is not None:
            self.dataset = cloudpickle.loads(pristine)
            found.append(self._resumed_fingerprint(task, context))
        if shard.fingerprint in found:
            return
        if None in found or (found[0] == found[-1] and pristine is not None):
            logger.warning(
                "antifreeze: the saved state of %s does not reproduce the batch that followed it; replaying shard %d "
                "from its start",
                type(self.dataset).__name__,
                context.slot,
            )
            if pristine is not None:
                self.dataset = cloudpickle.loads(pristine)
            self._begin(task, None, context)
        else:
            self.fingerprint = shard.fingerprint

    def _resumed_fingerprint(self, task: Task, context: TaskContext) -> int | None:
        """Resume from the state and replay; return the resulting fingerprint, or None if that failed."""
        try:
            self._begin(task, task.what.stand, context)
            self._replay(task, context)
        except UserError:
            return None
        finally:
            context.clear(context.step)
        return self.fingerprint

    def _begin(self, task: Task, stand: ShardState | None, context: TaskContext) -> None:
        _worker_info.update(dataset=self.dataset, seed=task.seed + context.slot)
        self._epoch, self._number, self.fingerprint, self.ended, self.end = task.epoch, 0, 0, False, None
        context.seed(task.seed, 1 + context.slot, 0)
        self._is_seeded = self._is_used = True
        try:
            states = {} if stand is None else opened_state(stand.state)
            loaded = "dataset" in states and has_state(self.dataset)
            if loaded and stand is not None and stand.is_end:
                load_between(self.dataset, states["dataset"])
                context.seed(task.seed, 1 + context.slot, 0)
            elif loaded:
                self.dataset.load_state_dict(states["dataset"])
                self._is_to_forget = keeps_loaded_state(self.dataset)
            context.sample(Stage.FETCH, f"iter(dataset), shard {context.slot}", 0)
            self._samples = iter(self.dataset)
            if "iterator" in states and has_state(self._samples):
                self._samples.load_state_dict(states["iterator"])  # type: ignore[attr-defined]
                loaded = True
        except BaseException as error:
            self._epoch = -1
            raise UserError("iter(dataset)", error) from error
        if stand is not None and loaded:
            self._number, self.fingerprint = stand.after, stand.fingerprint

    def _current_state(self) -> ShardState | None:
        """Return the position of the shard from the states of the dataset and its iterator, if they have any."""
        owners = {"dataset": self.dataset, "iterator": self._samples}
        if self._samples is self.dataset:
            del owners["dataset"]
        try:
            states = {name: owner.state_dict() for name, owner in owners.items() if has_state(owner)}
            return ShardState(self._number, self.fingerprint, sealed_state(states)) if states else None
        except BaseException as error:
            if not self._number:
                return None  # some have no state before their first sample
            raise UserError("state_dict() of the dataset", error) from error

    def _end_state(self) -> bytes | None:
        """Return the state of the dataset after its iteration, if it saves one."""
        if not has_state(self.dataset):
            return None
        try:
            return sealed_state({"dataset": self.dataset.state_dict()})
        except BaseException as error:
            raise UserError("state_dict() of the dataset", error) from error

    # -- batches ---------------------------------------------------------------------------------------------------

    def _replay(self, task: Task, context: TaskContext) -> None:
        """Replay the batches that a previous worker has delivered."""
        shard: Shard = task.what
        try:
            while self._number < shard.number:
                context.sample(Stage.REPLAY, f"batch {self._number} of shard {context.slot}, replayed", 0)
                with contextlib.suppress(Nothing):
                    batch = self._next(task, context)
                    if shard.fingerprint is not None or not self.in_trainer:
                        self.seen(*dump(batch))
                context.clear(context.step)  # samples skipped in the replay were reported before
        except Ended:
            self.fingerprint = -1

    def _finish(self, task: Task, context: TaskContext) -> None:
        """Run the iteration of a shard that was saved as exhausted to its end.

        A generator runs the code after its last ``yield`` only when ``next`` is called once more; a dataset that counts
        its epochs there would stay an epoch behind.
        """
        shard: Shard = task.what
        has_more = True
        try:
            self._next(task, context)
        except Nothing:
            pass
        except Ended:
            has_more = False
        if has_more and shard.fingerprint is not None:
            raise _replay_failed(shard, context.slot, has_more=True)
        context.clear(context.step)
        self.ended = True

    def _next(self, task: Task, context: TaskContext) -> Any:
        """Return the next batch of the shard."""
        # The first batch continues with the random numbers that iter() started with.
        if self._number or not self._is_seeded:
            context.seed(task.seed, 1 + context.slot, self._number)
        self._is_seeded = False
        first = self._number * (self._batch_size or 1)
        samples, numbers = [], []
        began_s = time.perf_counter()
        for number in context.samples(Stage.FETCH, range(first, first + (self._batch_size or 1))):
            try:
                samples.append(next(self._samples))
            except StopIteration:
                break
            except BaseException as error:  # noqa: BLE001  border: user code may raise anything
                alive = not inspect.isgenerator(self._samples)  # a generator that has raised is finished
                name = f"sample {number} of shard {context.slot}"
                context.failed(UserError("next(dataset)", error, sample=name, position=number - first, can_skip=alive))
                continue
            numbers.append(number)
        context.add(Stage.FETCH, time.perf_counter() - began_s)
        if self._is_to_forget:
            self.dataset.load_state_dict({})
            self._is_to_forget = False
        self.ended = len(samples) + len(context.skipped) < (self._batch_size or 1)
        if self.ended:
            self.end = self._end_state()
            if self._drop_last or not samples:
                raise Ended
        self._number += 1
        if not samples:
            raise Nothing
        if not self.batched:
            return self.convert(samples[0], numbers[0], context)
        return self.collate(samples, numbers, context)


class NotTheSame(RuntimeError):
    """An iterable dataset yielded different samples when a replacement worker replayed it."""


class NotAsSaved(RuntimeError):
    """An iterable dataset yielded different samples than before its state was saved."""


def _replay_failed(shard: Shard, slot: int, *, has_more: bool = False) -> UserError:
    what, number = f"iterating the dataset again (share {slot})", shard.number
    if not shard.is_saved and not has_more:
        error = NotTheSame(
            f"cannot resume shard {slot} on a replacement worker: expected the same first {number} batches, got "
            "different ones. The dataset is not deterministic, so the remaining samples are unknown"
        )
        return UserError(what, error, reason=FailureReason.NOT_REPEATABLE)
    why = f"the first {number} batches of shard {slot} differ from those delivered before the state was saved"
    if has_more:
        why = f"shard {slot} had ended after {number} batches when the state was saved, and now it has more"
    changed = NotAsSaved(
        f"the state does not fit this dataset: {why}: it has changed, or it is not deterministic. "
        "Use load_state_dict(state, strict=False) to continue after that many batches, whatever they are"
    )
    return UserError(what, changed, reason=FailureReason.NOT_AS_SAVED)


# -- saved states of the user's objects --------------------------------------------------------------------------------


def has_state(owner: object) -> bool:
    """Return True if an object can save and load its position."""
    save, load = getattr(owner, "state_dict", None), getattr(owner, "load_state_dict", None)
    return save is not None and load is not None and _takes(save, 0) and _takes(load, 1)


def _takes(function: Any, count: int) -> bool:
    """Return True if a function can be called with ``count`` arguments: those of some datasets need more."""
    bound = getattr(function, "__self__", None) is not None
    return callable(function) and _fits(getattr(function, "__func__", function), count + bound)


@functools.lru_cache(maxsize=64)
def _fits(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it has no signature
        return True
    return True


def keeps_loaded_state(dataset: object) -> bool:
    """True for Hugging Face's iterable datasets: every iteration starts with the state that was loaded last.

    That holds until ``set_epoch()``. ``load_state_dict({})`` resets it: the next iteration starts from the beginning.
    """
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(dataset).__mro__}
    return ("datasets", "IterableDataset") in names


def load_between(dataset: Any, state: Any) -> None:
    """Load a state that an iterable dataset had between two iterations.

    A state is meant to be loaded before ``iter(dataset)``, which then continues the iteration in which the state was
    taken. Here that iteration is finished, or has not started, and the next one is wanted. A dataset that counts its
    iterations in ``__iter__`` may undo one when it loads a state, or may skip the count after that: in both cases it
    has the same state again after ``iter(dataset)``, and the next iteration is the right one. Otherwise the state is
    loaded once more. A generator runs nothing before its first sample is requested.

    If it still has another state, it would apply this one in its next iteration, and continue from there. That
    iteration may be empty, so the dataset gets its previous state back: a whole epoch matters more than a counter.
    """
    if keeps_loaded_state(dataset):
        return
    before = dataset.state_dict()
    dataset.load_state_dict(copy.deepcopy(state))
    if not inspect.isgeneratorfunction(getattr(type(dataset), "__iter__", None)):
        with contextlib.suppress(Exception):  # border: it may need a worker
            iter(dataset)
        if _are_equal(dataset.state_dict(), state):
            return
        dataset.load_state_dict(copy.deepcopy(state))
    if not _are_equal(dataset.state_dict(), state):
        dataset.load_state_dict(before)


def _are_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  border: arrays are neither equal nor not
        return sealed_state({"": one}) == sealed_state({"": other})


def sealed_state(states: dict[str, Any]) -> bytes:
    """Return states of the user's objects in the form in which they are sent between processes."""
    return bytes(cloudpickle.dumps(states))


def opened_state(state: bytes) -> dict[str, Any]:
    """Return the states that ``sealed_state`` packed."""
    states: dict[str, Any] = cloudpickle.loads(state)
    return states
