"""Arguments that both loaders share, checked where they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antifreeze.core import ConfigError
from antifreeze.datasets import parse_limit


def split_on_error(on_error: object) -> tuple[str, Callable[[Any], Any] | None]:
    """Return what workers do about a failing sample, and the user's function if that decides."""
    if callable(on_error):
        return "raise", on_error
    if on_error not in ("raise", "skip"):
        raise ConfigError(
            f"on_error={on_error!r} is not known",
            hint='it is "raise", "skip", or a function that takes the error and returns one of these',
            argument="on_error",
        )
    return str(on_error), None


def checked_interval(steps: object) -> int | None:
    """Return ``snapshot_every_n_steps`` if it is a number of steps, or None as torchdata takes it."""
    if steps is None or (isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1):
        return steps
    raise ConfigError(
        f"invalid snapshot_every_n_steps: expected an integer >= 1, got {steps!r}",
        hint="leave it out: state_dict() is exact at every step",
        argument="snapshot_every_n_steps",
    )


def default_memory_limit(limit: int | str | None, num_workers: int) -> int:
    """Return how much memory a worker may have before it is taken for leaking."""
    if limit is not None:
        return parse_limit(limit, "worker_memory_limit")
    return parse_limit(None) * 4 // max(1, num_workers)  # half of what there is, for all of them


def checked_limits(stall_limit: float | None) -> float | None:
    """Return how long a worker may stall."""
    number = isinstance(stall_limit, int | float) and not isinstance(stall_limit, bool)
    if stall_limit is not None and not (number and 0 < stall_limit < float("inf")):
        raise ConfigError(
            f"stall_limit={stall_limit!r} is not a number of seconds above 0",
            hint="leave it out for a limit that adapts to how long samples take",
            argument="stall_limit",
        )
    return stall_limit


def checked_restarts(max_restarts: int) -> int:
    """Return how many lost workers are restarted in an epoch."""
    if not isinstance(max_restarts, int) or isinstance(max_restarts, bool) or max_restarts < 0:
        raise ConfigError(
            f"max_restarts={max_restarts!r} is not an integer of at least 0",
            hint="0 makes the first lost worker an error",
            argument="max_restarts",
        )
    return max_restarts
