"""Collects a shuffle window in several passes if it does not fit in memory as a whole.

A window has a fixed number of rows, because the order of an epoch is arithmetic and must not depend on row sizes. How
many rows fit was estimated from footers and from the first rows, and rows may be larger than that: a dictionary holds a
long string once and refers to it in every row. Such a window is made in several passes over the same fragments. Each
pass keeps the rows for the next positions only, as many as fit, and drops the others: the order is the same, and memory
is bounded at the cost of decoding more than once.

Guarantees: every pass delivers at least one row; the kept rows never exceed the budget by more than the piece that is
being added. Assumed: a piece is small compared with the budget, or has one row (``ReadLimits``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from antifreeze.plan import Int64Array

MAX_PASSES = 64
"""A window that needs more is rejected: it would be decoded repeatedly for hours."""


class Passes:
    """Collects the positions ``low`` to ``high`` of a window in the current pass. Not thread-safe."""

    def __init__(self, num_positions: int, budget_nbytes: int) -> None:
        self.num_positions, self.budget_nbytes = num_positions, budget_nbytes
        self.low, self.high = 0, num_positions
        self.seen_nbytes = 0
        """Size of all rows that this pass has seen, kept or not."""
        self.kept_nbytes = 0.0
        """Size of the kept rows."""
        self._weights: npt.NDArray[np.float32] | None = None

    @property
    def is_complete(self) -> bool:
        """True if this pass collects the last position of the window."""
        return self.high == self.num_positions

    @property
    def is_too_heavy(self) -> bool:
        """True if a window of this size would take too many passes."""
        return self.seen_nbytes > MAX_PASSES * self.budget_nbytes

    def wanted(self, positions: Int64Array) -> npt.NDArray[np.bool_] | None:
        """Return which of these positions this pass collects; None for all."""
        if self.low == 0 and self.is_complete:
            return None
        return (positions >= self.low) & (positions < self.high)

    def add(self, positions: Int64Array, nbytes: int) -> bool:
        """Count rows that were put at these positions. Return True if that lowered ``high``: later rows are dropped."""
        if self._weights is None:
            self._weights = np.zeros(self.num_positions, np.float32)
        self._weights[positions] = nbytes / max(len(positions), 1)
        self.kept_nbytes += nbytes
        if self.kept_nbytes <= self.budget_nbytes or self.high - self.low <= 1:
            return False
        weights = np.cumsum(self._weights[self.low : self.high], dtype=np.float64)
        # Half of the budget: rows for earlier positions are still to come.
        count = max(1, int(np.searchsorted(weights, self.budget_nbytes / 2, side="right")))
        self._weights[self.low + count : self.high] = 0
        self.high = self.low + count
        self.kept_nbytes = float(weights[count - 1])
        return True

    def begin_next(self) -> None:
        """Start the next pass, after the positions of this one."""
        self.low, self.high = self.high, self.num_positions
        self.seen_nbytes, self.kept_nbytes = 0, 0.0
