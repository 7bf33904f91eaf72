"""Which rows of a shuffle window are collected now, if the window turns out not to fit in memory as a whole.

A window has a fixed number of rows, because the order of an epoch is arithmetic and must not depend on what rows weigh.
How many rows fit was estimated from footers and from the first rows, and data may be heavier than that: a dictionary
holds a long text once and names it in every row. Such a window is made in several passes over the same fragments. Each
pass keeps the rows for the next places only, as many as fit, and drops the others: the order is the same, and memory is
bounded by decoding more than once.

Guarantees: every pass delivers at least one row; the rows that are kept at any time weigh at most the budget, plus the
piece that is being added. Assumed: a piece is small compared with the budget, or has one row (``ReadLimits``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antifreeze.plan import Int64Array

MAX_PASSES = 64
"""A window that needs more is refused: it would be decoded over and over for hours."""


class Passes:
    """The places from ``low`` to ``high`` of a window are collected in this pass. Not thread-safe."""

    def __init__(self, num_places: int, budget_nbytes: int) -> None:
        self.num_places, self.budget_nbytes = num_places, budget_nbytes
        self.low, self.high = 0, num_places
        self.seen_nbytes = 0
        """What all rows of the window weigh that this pass has come across, kept or not."""
        self.kept_nbytes = 0.0
        """What the rows that are kept weigh."""
        self._weights: npt.NDArray[np.float32] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the last place of the window is collected in this pass."""
        return self.high == self.num_places

    @property
    def is_too_heavy(self) -> bool:
        """Whether a window of this weight would take too many passes."""
        return self.seen_nbytes > MAX_PASSES * self.budget_nbytes

    def wanted(self, places: Int64Array) -> npt.NDArray[np.bool_] | None:
        """Return which of these places are collected now; None for all of them."""
        if self.low == 0 and self.is_complete:
            return None
        return (places >= self.low) & (places < self.high)

    def add(self, places: Int64Array, nbytes: int) -> bool:
        """Count rows that were put at these places. Return True if that lowered ``high``: rows from there on go."""
        if self._weights is None:
            self._weights = np.zeros(self.num_places, np.float32)
        self._weights[places] = nbytes / max(len(places), 1)
        self.kept_nbytes += nbytes
        if self.kept_nbytes <= self.budget_nbytes or self.high - self.low <= 1:
            return False
        weights = np.cumsum(self._weights[self.low : self.high], dtype=np.float64)
        # Half of the budget: rows for places further down are still to come.
        count = max(1, int(np.searchsorted(weights, self.budget_nbytes / 2, side="right")))
        self._weights[self.low + count : self.high] = 0
        self.high = self.low + count
        self.kept_nbytes = float(weights[count - 1])
        return True

    def begin_next(self) -> None:
        """Collect the places behind those that this pass has collected."""
        self.low, self.high = self.high, self.num_places
        self.seen_nbytes, self.kept_nbytes = 0, 0.0
