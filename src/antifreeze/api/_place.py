"""Where a run stands, as a handful of integers: what ``state_dict()`` of a ``StreamingDataLoader`` holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from antifreeze.core import StateMismatch, check_kind, get_logger, settle
from antifreeze.loader import Shape
from antifreeze.plan import Seat

logger = get_logger()

KIND = "StreamingDataLoader"
VERSION = 1


class Place(NamedTuple):
    """A place in a run, the same for all its ranks."""

    epoch: int = 0
    sample: int = 0
    """How many samples of the epoch all ranks together have delivered."""
    global_batch: int | None = None
    """How many samples a step takes, over all ranks. None before anything was read, as is what follows."""
    shapes: tuple[Shape, ...] = ()
    """The shape of each dataset that is read; one, unless several are mixed."""

    @property
    def lanes(self) -> int | None:
        """How many lanes the run is split into."""
        return self.shapes[0].lanes if self.shapes else None


def to_state(place: Place, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a place as plain numbers and texts."""
    return {
        "version": VERSION,
        "kind": KIND,
        "epoch": place.epoch,
        "sample": place.sample,
        "global_batch": place.global_batch,
        "lanes": place.lanes,
        "windows": [shape.window_rows for shape in place.shapes],
        "streams": [shape.streams for shape in place.shapes],
        **facts,
    }


def from_state(state: Any) -> Place:
    """Return the place that a state tells of; raise StateMismatch if it cannot be one."""
    check_kind(state, kind=KIND, version=VERSION)
    try:
        shapes = tuple(
            Shape(_natural(state["lanes"], 1), _natural(window, 1), _natural(streams, 1))
            for window, streams in zip(state["windows"], state["streams"], strict=True)
        )
        batch = state["global_batch"]
        return Place(
            _natural(state["epoch"]), _natural(state["sample"]), None if batch is None else _natural(batch, 1), shapes
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StateMismatch(
            f"the state is damaged: {type(error).__name__}: {error}",
            hint="give load_state_dict() what state_dict() of the same loader returned",
            differences={},
        ) from error


def _natural(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{value!r} where a number of at least {least} should stand")
    return value


def check_batch(before: int | None, batch_size: int, world_size: int, *, strict: bool) -> None:
    """Raise, or warn, because a step would take another number of samples than before."""
    now, fits = batch_size * world_size, before is not None and before % world_size == 0
    hint = f"batch_size={(before or 0) // world_size} keeps it on {world_size} ranks" if fits else ""
    settle(
        {"batch_size x ranks": (before, now)},
        strict=strict,
        lost="nothing, each sample still arrives once; but steps are made of other samples than they would have been",
        hint=hint,
    )


def warn_of_lanes(seat: Seat) -> None:
    """Say that ranks do not divide the lanes, and what that costs."""
    logger.warning(
        "antifreeze: %d ranks do not divide the %d lanes of this run, so every row is decoded by %d ranks. Each sample "
        "is still delivered once. A new run with lanes=%d can go on with this number of ranks at no cost",
        seat.world_size,
        seat.lanes,
        seat.every,
        math.lcm(seat.world_size, seat.lanes),
    )
