"""Lanes: how an epoch is split between ranks so that no split changes what a global step is made of.

Sample ``s`` of an epoch belongs to lane ``s % lanes``, where it is number ``s // lanes``. A global step is a stretch of
consecutive samples. Rank ``r`` of ``w`` takes every sample with ``s % w == r``: if ``w`` divides the number of lanes,
these are whole lanes, and no two ranks read the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Lanes(NamedTuple):
    """Some of the lanes of an epoch: every ``step``-th of ``total``, from ``first`` on."""

    total: int = 1
    first: int = 0
    step: int = 1

    @property
    def numbers(self) -> range:
        """Which lanes they are."""
        return range(self.first, self.total, self.step)

    def position(self, sample: int) -> int:
        """Return how many of the samples before this one are in these lanes."""
        return max(0, -(-(sample - self.first) // self.step))

    def sample(self, position: int) -> int:
        """Return the number in the epoch of the sample that stands at a position of these lanes."""
        return self.first + position * self.step


def stretch(num_rows: int, lanes: int, lane: int) -> tuple[int, int]:
    """Return where a lane's rows begin and end among all rows: lanes differ by one row at most, longer ones first."""
    size, longer = divmod(num_rows, lanes)
    start = lane * size + min(lane, longer)
    return start, start + size + (lane < longer)


def apportion(taken: int, lengths: Sequence[int]) -> list[int]:
    """Return how many of the first ``taken`` items come from each of several streams that are mixed evenly.

    Item ``i`` of a stream of length ``n`` stands at ``(2i + 1) / 2n``: the streams last until the end together. The
    numbers add up to ``taken``, and none of them ever gets smaller as ``taken`` grows.
    """
    total = sum(lengths)
    if not total:
        return [0] * len(lengths)
    counts = [(2 * n * taken + total) // (2 * total) for n in lengths]
    places = range(len(lengths))
    while (over := sum(counts) - taken) > 0:
        # The last of those taken goes back; of equals, that of the later stream.
        _, j = max((_At(counts[j] - 1, lengths[j]), j) for j in places if counts[j])
        counts[j] -= 1
    while over < 0:
        _, j = min((_At(counts[j], lengths[j]), j) for j in places if counts[j] < lengths[j])
        counts[j] += 1
        over += 1
    return counts


class _At:
    """Where an item of a stream stands. Compared without rounding, and faster than ``fractions.Fraction``."""

    __slots__ = ("above", "below")

    def __init__(self, item: int, length: int) -> None:
        self.above, self.below = 2 * item + 1, 2 * length

    def __lt__(self, other: _At) -> bool:
        return self.above * other.below < other.above * self.below

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _At) and self.above * other.below == other.above * self.below

    __hash__ = None  # type: ignore[assignment]


class RankSlice(NamedTuple):
    """What one rank reads of an epoch that is split into lanes."""

    rank: int
    world_size: int
    lanes: int

    @property
    def read(self) -> Lanes:
        """The lanes that this rank reads. If the ranks do not divide the lanes, others read them too."""
        step = math.gcd(self.world_size, self.lanes)
        return Lanes(self.lanes, self.rank % step, step)

    @property
    def every(self) -> int:
        """Of what it reads, a rank keeps every so-many-th row: one in one, if the ranks divide the lanes."""
        return self.world_size // math.gcd(self.world_size, self.lanes)

    def keeps(self, position: int) -> bool:
        """Tell whether the row at a position of what this rank reads is its own."""
        return self.read.sample(position) % self.world_size == self.rank


class EpochSteps(NamedTuple):
    """The global steps of an epoch, or of what is left of it."""

    num_rows: int
    global_batch: int
    drop_last: bool
    first: int = 0
    """The sample that the first of these steps begins with."""

    @property
    def number(self) -> int:
        """How many batches every rank delivers."""
        rows = max(0, self.num_rows - self.first)
        return rows // self.global_batch if self.drop_last else -(-rows // self.global_batch)

    def after(self, steps: int) -> int:
        """Return the sample that follows these many steps."""
        return min(self.num_rows, self.first + steps * self.global_batch)


def default_lanes(world_size: int, num_fragments: int) -> int:
    """Return a number of lanes for a shuffled epoch: a multiple of the ranks, so that their number can change.

    Lanes are cut to equal lengths, and a row group that is cut is decoded twice: few row groups, few lanes.
    """
    lanes = world_size
    while 2 * lanes <= LANES and 2 * lanes * _FRAGMENTS_PER_LANE <= num_fragments:
        lanes *= 2
    return lanes


LANES = 8
MAX_LANES = 1 << 16
"""More than any job has ranks. A rank that reads all of so many lanes plans an epoch in about a second."""
_FRAGMENTS_PER_LANE = 16
