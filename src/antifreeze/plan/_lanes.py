"""Lanes: how an epoch is split between ranks so that no split changes the samples of a global step.

Sample ``s`` of an epoch belongs to lane ``s % lanes``, where it is number ``s // lanes``. A global step is a range of
consecutive samples. Rank ``r`` of ``w`` takes every sample with ``s % w == r``: if ``w`` divides the number of lanes,
these are whole lanes, and no two ranks read the same rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple


class Lanes(NamedTuple):
    """Some lanes of an epoch: every ``step``-th of ``total``, starting at ``first``."""

    total: int = 1
    first: int = 0
    step: int = 1

    @property
    def numbers(self) -> range:
        """The numbers of these lanes."""
        return range(self.first, self.total, self.step)

    def position(self, sample: int) -> int:
        """Return the number of samples before this one in these lanes."""
        return max(0, -(-(sample - self.first) // self.step))

    def sample(self, position: int) -> int:
        """Return the number, in the epoch, of the sample at a position of these lanes."""
        return self.first + position * self.step


def stretch(num_rows: int, lanes: int, lane: int) -> tuple[int, int]:
    """Return the range of a lane among all rows: lanes differ by at most one row, longer ones first."""
    size, longer = divmod(num_rows, lanes)
    start = lane * size + min(lane, longer)
    return start, start + size + (lane < longer)


def apportion(taken: int, lengths: Sequence[int]) -> list[int]:
    """Return how many of the first ``taken`` items come from each of several evenly mixed streams.

    Item ``i`` of a stream of length ``n`` is at ``(2i + 1) / 2n``, so all streams end together. The numbers add up to
    ``taken``, and none of them decreases as ``taken`` grows.
    """
    total = sum(lengths)
    if not total:
        return [0] * len(lengths)
    counts = [(2 * n * taken + total) // (2 * total) for n in lengths]
    streams = range(len(lengths))
    while (over := sum(counts) - taken) > 0:
        # Return the last one taken; of equals, that of the later stream.
        _, j = max((_at((2 * counts[j] - 1, lengths[j])), j) for j in streams if counts[j])
        counts[j] -= 1
    while over < 0:
        _, j = min((_at((2 * counts[j] + 1, lengths[j])), j) for j in streams if counts[j] < lengths[j])
        counts[j] += 1
        over += 1
    return counts


def _compared(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Compare two fractions, (above, below), without rounding."""
    return one[0] * other[1] - other[0] * one[1]


_at = functools.cmp_to_key(_compared)
"""A fraction that can be compared; faster than ``fractions.Fraction``."""


class RankSlice(NamedTuple):
    """The part of an epoch with lanes that one rank reads."""

    rank: int
    world_size: int
    lanes: int

    @property
    def read(self) -> Lanes:
        """The lanes that this rank reads. Unless the number of ranks divides that of lanes, others read them too."""
        step = math.gcd(self.world_size, self.lanes)
        return Lanes(self.lanes, self.rank % step, step)

    @property
    def every(self) -> int:
        """A rank keeps every ``every``-th row that it reads: 1 if the number of ranks divides that of lanes."""
        return self.world_size // math.gcd(self.world_size, self.lanes)

    def keeps(self, position: int) -> bool:
        """Return True if this rank keeps the row at a position of what it reads."""
        return self.read.sample(position) % self.world_size == self.rank


class EpochSteps(NamedTuple):
    """The global steps of an epoch, or of its remainder."""

    num_rows: int
    global_batch: int
    drop_last: bool
    first: int = 0
    """The first sample of the first step."""

    @property
    def number(self) -> int:
        """Number of batches that every rank delivers."""
        rows = max(0, self.num_rows - self.first)
        return rows // self.global_batch if self.drop_last else -(-rows // self.global_batch)

    def after(self, steps: int) -> int:
        """Return the sample that follows ``steps`` steps."""
        return min(self.num_rows, self.first + steps * self.global_batch)


def default_lanes(world_size: int, num_fragments: int) -> int:
    """Return the number of lanes for a shuffled epoch: a multiple of the ranks, so that their number can change.

    Lanes are cut to equal lengths, and a row group that is cut is decoded twice: few row groups need few lanes.
    """
    lanes = world_size
    while 2 * lanes <= LANES and 2 * lanes * _FRAGMENTS_PER_LANE <= num_fragments:
        lanes *= 2
    return lanes


LANES = 8
MAX_LANES = 1 << 16
"""More than the ranks of any job. A rank that reads all of these lanes plans an epoch in about a second."""
_FRAGMENTS_PER_LANE = 16
