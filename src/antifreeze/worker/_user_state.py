"""Saved states of the user's objects: whether they support them, and how they are sent."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import cloudpickle


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
