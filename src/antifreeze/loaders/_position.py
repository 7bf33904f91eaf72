"""The position of a run as a handful of integers: what ``state_dict()`` of a ``StreamingDataLoader`` holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from antifreeze.core import check_kind, forms, get_logger, settle
from antifreeze.datasets import INFINITE, MAX_STREAMS, MAX_WINDOW_ROWS, RunShape
from antifreeze.plan import MAX_LANES, RankSlice

logger = get_logger()

KIND = "StreamingDataLoader"
VERSION = 1
MAX_EPOCH = 1 << 40
_MAX_SHAPES = 1 << 14
_MARGIN = 8


class StreamPosition(NamedTuple):
    """A position in a run, the same for all its ranks."""

    epoch: int = 0
    sample: int = 0
    """How many samples of the epoch all ranks together have delivered."""
    global_batch: int | None = None
    """How many samples a step takes, over all ranks. None before anything was read, as is what follows."""
    shapes: tuple[RunShape, ...] = ()
    """The shape of each dataset that is read; one, unless several are mixed."""

    @property
    def lanes(self) -> int | None:
        """How many lanes the run is split into."""
        return self.shapes[0].lanes if self.shapes else None


def to_state(place: StreamPosition, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a position as plain numbers and texts."""
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


_POSITION = {
    "version": forms.whole(1, VERSION),
    "kind": forms.text(among=(KIND,)),
    "epoch": forms.whole(0, MAX_EPOCH),
    "sample": forms.whole(0, INFINITE),
    "global_batch": forms.maybe(forms.whole(1, INFINITE)),
    "lanes": forms.maybe(forms.whole(1, MAX_LANES)),
    "windows": forms.items(forms.whole(1, MAX_WINDOW_ROWS), most=_MAX_SHAPES),
    "streams": forms.items(forms.whole(1, MAX_STREAMS), most=_MAX_SHAPES),
}
_FACTS = dict.fromkeys(("seed", "shuffle", "drop_last", "rows", "data"), forms.fact)
_check = forms.fields(_POSITION | _FACTS | {"shuffle": forms.flag, "drop_last": forms.flag})


def from_state(state: Any) -> StreamPosition:
    """Return the position in a state; raise StateMismatch if it cannot be one."""
    check_kind(state, kind=KIND, version=VERSION)
    _check(state, "state")
    lanes, windows, streams = state["lanes"], state["windows"], state["streams"]
    if len(windows) != len(streams) or (lanes is None) != (not windows):
        got = [len(windows), len(streams), lanes]
        raise forms.unexpected("windows, streams, lanes", "as many windows as streams, and lanes if there are any", got)
    if lanes is not None and state["global_batch"] is None:
        raise forms.unexpected("state['global_batch']", "an integer >= 1 in a run that has lanes", None)
    shapes = tuple(RunShape(lanes, *pair) for pair in zip(windows, streams, strict=True))
    place = StreamPosition(state["epoch"], state["sample"], state["global_batch"], shapes)
    if place.sample and not shapes:
        raise forms.unexpected("state['sample']", "0 in a run that has not begun", place.sample)
    return place


def check_left(place: StreamPosition, num_rows: int, *, drop_last: bool) -> None:
    """Raise StateMismatch if nothing would be left of the epoch: a state is never saved there."""
    last = num_rows - (place.global_batch or 1 if drop_last else 1)
    if place.sample > max(0, last):
        raise forms.unexpected("state['sample']", f"an integer from 0 to {max(0, last)}", place.sample)


def check_windows(shapes: tuple[RunShape, ...], fresh: tuple[RunShape, ...]) -> None:
    """Raise StateMismatch if a window of the state would take far more memory than one that is made here.

    A state keeps its windows on any machine, for they decide the order. What a row takes is an estimate, which may
    change a little between versions of a library: hence a margin.
    """
    for number, (shape, usual) in enumerate(zip(shapes, fresh, strict=True)):
        if shape.window_rows > (most := _MARGIN * usual.window_rows):
            raise forms.unexpected(f"state['windows'][{number}]", f"an integer from 1 to {most}", shape.window_rows)


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


def warn_of_lanes(rank_slice: RankSlice) -> None:
    """Say that ranks do not divide the lanes, and what that costs."""
    logger.warning(
        "antifreeze: %d ranks do not divide the %d lanes of this run, so every row is decoded by %d ranks. Each sample "
        "is still delivered once. A new run with lanes=%d can use this number of ranks at no cost",
        rank_slice.world_size,
        rank_slice.lanes,
        rank_slice.every,
        math.lcm(rank_slice.world_size, rank_slice.lanes),
    )
