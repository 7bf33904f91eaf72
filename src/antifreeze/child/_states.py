"""States of the user's objects: whether they have any, and how they travel."""

from __future__ import annotations

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


def sealed_state(states: dict[str, Any]) -> bytes:
    """Return states of the user's objects as they travel between processes."""
    return bytes(cloudpickle.dumps(states))


def opened_state(state: bytes) -> dict[str, Any]:
    """Return states that come from a worker, or go to one."""
    states: dict[str, Any] = cloudpickle.loads(state)
    return states
