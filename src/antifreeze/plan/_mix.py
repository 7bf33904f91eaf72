"""Several datasets mixed into one order, lane by lane, so that a mixture can be split between ranks like any dataset.

A group is one sample of every lane. Each lane takes the same number of rows of each dataset from a block of groups, in
its own random order. An era is a range of groups with known ratios: if weights are constant, there is one until a
dataset is exhausted, and another one for those that are left.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from antifreeze.plan._lanes import Lanes, apportion
from antifreeze.plan._permute import Int64Array, RandomStream, permutation

BLOCK_GROUPS = 64
_MAX_ERAS = 4096

Weights = Sequence[float] | Callable[[int], Sequence[float]]
"""The weight of each dataset, or a function that returns the weights for the number of a group."""


class _Era(NamedTuple):
    """A range of groups."""

    first: int
    counts: tuple[int, ...]
    """Number of rows of each dataset that a lane takes in this era."""
    before: tuple[int, ...]
    """Number of rows that it has taken before."""


class Mix:
    """Which dataset each sample of an epoch comes from. Arithmetic: any position is found without earlier ones."""

    block_groups = BLOCK_GROUPS
    """Number of groups per block; the last one may be smaller."""

    def __init__(self, sizes: Sequence[int], lanes: int, weights: Weights, *, all_of_them: bool) -> None:
        self.sizes, self.lanes = tuple(sizes), lanes
        self._left = [size // lanes for size in sizes]
        self._all = all_of_them
        self.eras: list[_Era] = []
        self._before, self.num_groups = [0] * len(sizes), 0
        if callable(weights):
            self._plan_changing(weights)
        else:
            self._plan_constant(list(weights))

    @property
    def unit(self) -> int:
        """Number of rows of a dataset that are taken together: one per lane."""
        return self.lanes

    @property
    def tail_sizes(self) -> list[int]:
        """Number of rows of each dataset that do not fill a unit, and come at the end."""
        return [size % self.unit if self._all else 0 for size in self.sizes]

    @functools.cached_property
    def tail(self) -> list[tuple[int, int]]:
        """The rows at the end, dataset by dataset: its number, and the row."""
        left = zip(self.sizes, self.tail_sizes, strict=True)
        return [(number, row) for number, (size, few) in enumerate(left) for row in range(size - few, size)]

    @property
    def num_rows(self) -> int:
        """Number of samples of an epoch."""
        return self.num_groups * self.lanes + sum(self.tail_sizes)

    # -- eras ------------------------------------------------------------------------------------------------------

    def _plan_constant(self, weights: Sequence[float]) -> None:
        while ratios := self._ratios(weights):
            low, high = 0, sum(self._left)
            while low < high:  # the number of groups until a dataset is exhausted
                middle = (low + high + 1) // 2
                fits = all(n <= left for n, left in zip(_split(middle, ratios), self._left, strict=True))
                low, high = (middle, high) if fits else (low, middle - 1)
            self._add(_split(low, ratios))
            if not self._all:
                return

    def _plan_changing(self, weights: Callable[[int], Sequence[float]]) -> None:
        size = max(BLOCK_GROUPS, -(-sum(self._left) // _MAX_ERAS))
        owed = [0.0] * len(self.sizes)
        while ratios := self._ratios(weights(self.num_groups)):
            total = sum(ratios)
            # What a dataset loses by rounding in one era, it gets in a later one.
            owed = [o + size * n / total if left else 0.0 for o, n, left in zip(owed, ratios, self._left, strict=True)]
            wanted = apportion(size, [max(0, round(o * _SCALE)) for o in owed])
            owed = [o - n for o, n in zip(owed, wanted, strict=True)]
            ends = any(n > left for n, left in zip(wanted, self._left, strict=True))
            self._add([min(n, left) for n, left in zip(wanted, self._left, strict=True)])
            if ends and not self._all:
                return

    def _ratios(self, weights: Sequence[float]) -> list[int]:
        """Return the weights of the remaining datasets, as integers; empty if none is left."""
        ratios = [round(weight * _SCALE) if left else 0 for weight, left in zip(weights, self._left, strict=True)]
        if self._all and not any(ratios):
            ratios = [int(left > 0) for left in self._left]
        return ratios if any(ratios) else []

    def _add(self, counts: list[int]) -> None:
        if not any(counts):
            return
        self.eras.append(_Era(self.num_groups, tuple(counts), tuple(self._before)))
        self._before = [b + n for b, n in zip(self._before, counts, strict=True)]
        self._left = [left - n for left, n in zip(self._left, counts, strict=True)]
        self.num_groups += sum(counts)

    # -- positions -------------------------------------------------------------------------------------------------

    def taken(self, group: int) -> list[int]:
        """Return the number of rows of each dataset that a lane takes before ``group``, which starts a block."""
        at = bisect.bisect_right(self.eras, group, key=lambda era: era.first) - 1
        if at < 0:
            return [0] * len(self.sizes)
        era = self.eras[at]
        return [b + n for b, n in zip(era.before, apportion(group - era.first, era.counts), strict=True)]

    @property
    def num_blocks(self) -> int:
        """Number of blocks; the last one may be smaller."""
        return -(-self.num_groups // BLOCK_GROUPS)

    def counts(self, block: int) -> list[int]:
        """Return the number of rows of each dataset that a lane takes in a block."""
        first = block * BLOCK_GROUPS
        before, after = self.taken(first), self.taken(min(first + BLOCK_GROUPS, self.num_groups))
        return [b - a for a, b in zip(before, after, strict=True)]

    def picks(self, block: int, lane: int, *, seed: int, epoch: int) -> Int64Array:
        """Return the dataset of each group of a block, in one lane."""
        counts = self.counts(block)
        order = permutation(sum(counts), seed=seed, epoch=epoch, use=RandomStream.MIX, index=block, lane=lane)
        return np.repeat(np.arange(len(counts)), counts)[order]

    def sources(self, block: int, lanes: Lanes, *, seed: int, epoch: int) -> Int64Array:
        """Return the position of each sample of a block, in some lanes, among the rows that the datasets deliver.

        Each dataset delivers a row of each of these lanes in turn; the rows of the datasets follow one another.
        """
        numbers = lanes.numbers
        picks = np.stack([self.picks(block, lane, seed=seed, epoch=epoch) for lane in numbers], axis=1)
        found = np.empty_like(picks)
        offset = 0
        for dataset in range(len(self.sizes)):
            chosen = picks == dataset
            nth = np.cumsum(chosen, axis=0) - 1
            rows = offset + nth * len(numbers) + np.arange(len(numbers))
            found[chosen] = rows[chosen]
            offset += int(chosen.sum())
        return found.reshape(-1)


class Batchwise(Mix):
    """A mixture in which each batch comes from one dataset.

    All lanes together take a batch of one dataset: ``groups`` rows each. The datasets of the batches are themselves a
    mixture, of batches, with a single lane. Rows that do not fill a batch of their dataset come at the end.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        lanes: int,
        weights: Weights,
        *,
        groups: int,
        all_of_them: bool,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self.sizes, self.lanes, self.block_groups = tuple(sizes), lanes, groups
        self._seed, self._epoch = seed, epoch
        self._batches = Mix([size // (lanes * groups) for size in sizes], 1, weights, all_of_them=all_of_them)
        """The dataset of each batch; ``weights`` may be a function of the number of a batch."""
        self.num_groups = self._batches.num_groups * groups
        self._all = all_of_them
        self._known: tuple[int, Int64Array] = (-1, np.empty(0, np.int64))

    @property
    def unit(self) -> int:
        """Number of rows of a dataset that are taken together: a batch."""
        return self.lanes * self.block_groups

    @property
    def num_blocks(self) -> int:
        """Number of batches."""
        return self._batches.num_groups

    def _picked(self, stretch: int) -> Int64Array:
        """Return the datasets of a range of batches; the last result is cached."""
        if self._known[0] != stretch:
            self._known = (stretch, self._batches.picks(stretch, 0, seed=self._seed, epoch=self._epoch))
        return self._known[1]

    def taken(self, group: int) -> list[int]:
        """Return the number of rows of each dataset that a lane takes before ``group``, which starts a batch."""
        stretch, at = divmod(group // self.block_groups, BLOCK_GROUPS)
        before = self._batches.taken(stretch * BLOCK_GROUPS)
        since = np.bincount(self._picked(stretch)[:at], minlength=len(self.sizes)).tolist() if at else [0] * len(before)
        return [(b + n) * self.block_groups for b, n in zip(before, since, strict=True)]

    def counts(self, block: int) -> list[int]:
        """Return the number of rows of each dataset that a lane takes for a batch: all of one."""
        stretch, at = divmod(block, BLOCK_GROUPS)
        dataset = self._picked(stretch)[at]
        return [self.block_groups if number == dataset else 0 for number in range(len(self.sizes))]

    def picks(self, block: int, lane: int, *, seed: int, epoch: int) -> Int64Array:  # noqa: ARG002
        """Return the dataset of each group of a batch."""
        return np.repeat(np.arange(len(self.sizes)), self.counts(block))

    def sources(self, block: int, lanes: Lanes, *, seed: int, epoch: int) -> Int64Array:  # noqa: ARG002
        """Return the position of each sample of a batch among the rows of its dataset: they stay in order."""
        return np.arange(self.block_groups * len(lanes.numbers))


_SCALE = 10**6


def _split(groups: int, ratios: Sequence[int]) -> list[int]:
    """Return how many of ``groups`` groups each dataset gets if these ratios continued indefinitely."""
    total = sum(ratios)
    return apportion(groups, [n * (groups // total + 2) for n in ratios])
