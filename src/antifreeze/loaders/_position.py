"""The position of a run as a handful of integers, and what one rank reads from there.

A position is what ``state_dict()`` of a ``StreamingDataLoader`` holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from antifreeze.core import check_kind, forms, get_logger, settle
from antifreeze.datasets import (
    INFINITE,
    MAX_STREAMS,
    MAX_WINDOW_ROWS,
    ReadOptions,
    ReadRequest,
    RowDataset,
    RowSource,
    RunShape,
)
from antifreeze.decode import Block, Blocks, StridedBlocks
from antifreeze.distributed import Ranks
from antifreeze.plan import MAX_LANES, EpochSteps, RankSlice

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


class StreamSettings(Protocol):
    """What the user has set: attributes of a loader, which frameworks may change at any time."""

    dataset: RowDataset
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int
    num_workers: int
    prefetch_factor: int
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], None] | None
    pin_memory: bool
    timeout: float
    stall_limit: float | None
    memory_limit: int | None
    rank: int | None
    world_size: int | None
    lanes: int | None


class StreamingEpoch(NamedTuple):
    """What a rank reads, from where to where."""

    source: RowSource
    reading: ReadRequest
    rank_slice: RankSlice
    steps: EpochSteps

    def blocks(self, options: ReadOptions) -> Blocks:
        """Start reading this rank's rows."""
        position = self.rank_slice.read.position(self.steps.first)
        blocks = self.source.blocks(self.reading, position, options)
        skip = self._first - position
        return (
            blocks
            if not skip and self.rank_slice.every == 1
            else StridedBlocks(blocks, skip=skip, every=self.rank_slice.every)
        )

    @property
    def _first(self) -> int:
        """The position of this rank's first row in the lanes that it reads."""
        position = self.rank_slice.read.position(self.steps.first)
        while not self.rank_slice.keeps(position):
            position += 1
        return position

    def sample(self, row: int) -> int:
        """Return the number in the epoch of one of this rank's rows, counted from the first that it delivers here."""
        return self.rank_slice.read.sample(self._first + row * self.rank_slice.every)

    def name(self, row: int) -> str:
        """Return the location of one of this rank's rows as text."""
        return self.source.sample_name(self.reading, self.sample(row))

    def spare(self) -> Block:
        """Return a row for the last step, for a rank that has none left there: the epoch's first ones are repeated."""
        num_rows, world_size = self.steps.num_rows, self.rank_slice.world_size
        beyond = num_rows + (self.rank_slice.rank - num_rows) % world_size
        return self.source.sample(self.reading, beyond % num_rows)

    def after(self, steps: int) -> StreamPosition:
        """Return the position after a number of steps; after the last one, it is the beginning of the next epoch."""
        batch, shapes, epoch = self.steps.global_batch, self.reading.shapes, self.reading.epoch
        if steps >= self.steps.number:
            return StreamPosition(epoch + 1, 0, batch, shapes)
        return StreamPosition(epoch, self.steps.after(steps), batch, shapes)


def rank_slice_of(ranks: Ranks, sample: int, lanes: int) -> RankSlice:
    """Return which rows of the lanes are this rank's, from a sample of the epoch on."""
    return RankSlice((ranks.rank + sample) % ranks.world_size, ranks.world_size, lanes)
