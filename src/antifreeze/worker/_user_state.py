"""States of the user's objects: whether they have any, and how they travel."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import cloudpickle


def has_state(owner: object) -> bool:
    """Tell whether an object of the user's can save and load where it stands."""
    save, load = getattr(owner, "state_dict", None), getattr(owner, "load_state_dict", None)
    return save is not None and load is not None and _takes(save, 0) and _takes(load, 1)


def _takes(function: Any, count: int) -> bool:
    """Tell whether a function can be called with so many arguments: some datasets want to be told more."""
    bound = getattr(function, "__self__", None) is not None
    return callable(function) and _fits(getattr(function, "__func__", function), count + bound)


@functools.lru_cache(maxsize=64)
def _fits(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # it does not say
        return True
    return True


def keeps_loaded_state(dataset: object) -> bool:
    """True for Hugging Face's iterable datasets: every iteration begins with the state that was loaded last.

    That holds until ``set_epoch()``. ``load_state_dict({})`` ends it: the next iteration begins at the beginning.
    """
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(dataset).__mro__}
    return ("datasets", "IterableDataset") in names


def load_between(dataset: Any, state: Any) -> None:
    """Give an iterable dataset a state that it had between two iterations.

    A state is made to be loaded before ``iter(dataset)``, which then continues the iteration that the state was taken
    in. Here that one is over, or has not begun, and the next iteration is wanted. A dataset that counts its iterations
    in ``__iter__`` may undo one when it loads a state, or may leave out the count after that: in both cases it has the
    state again after ``iter(dataset)``, and the next iteration is the right one. If it has not, the state is loaded
    once more. A generator runs nothing before it is asked for a sample.

    If it still has another state, it will take this one over in its next iteration, and continue from there. That one
    may have nothing left, so the dataset gets back what it had: a whole epoch matters more than what it counts.
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
    """Return states of the user's objects as they travel between processes."""
    return bytes(cloudpickle.dumps(states))


def opened_state(state: bytes) -> dict[str, Any]:
    """Return states that come from a worker, or go to one."""
    states: dict[str, Any] = cloudpickle.loads(state)
    return states
