"""Which rows of which fragments belong to a dataset: all, a range, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antifreeze.plan._permute import Int64Array, RandomStream, permutation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class View:
    """Parts of fragments, in order. Part ``p`` is ``sizes[p]`` rows of fragment ``fragment[p]``.

    A part's rows are consecutive from ``start[p]``, unless ``rows`` lists them one by one (ascending, repeats allowed).
    """

    fragment: Int64Array
    start: Int64Array
    sizes: Int64Array
    rows: tuple[Int64Array, ...] | None = None

    @property
    def num_rows(self) -> int:
        """Rows over all parts."""
        return int(self.sizes.sum())

    def locate(self, part: int, offset: int) -> tuple[int, int]:
        """Return the fragment, and the row in it, at ``offset`` in a part."""
        row = self.start[part] + offset if self.rows is None else self.rows[part][offset]
        return int(self.fragment[part]), int(row)


def view_of_all(fragment_rows: Sequence[int]) -> View:
    """Return the view that holds every row."""
    sizes = np.array(fragment_rows, dtype=np.int64)
    return View(fragment=np.arange(len(sizes)), start=np.zeros_like(sizes), sizes=sizes)


def view_of_range(fragment_rows: Sequence[int], start: int, stop: int) -> View:
    """Return the view of the rows ``start`` to ``stop`` of a source, counted over its fragments."""
    ends = np.cumsum(np.array(fragment_rows, dtype=np.int64))
    begins = ends - np.array(fragment_rows, dtype=np.int64)
    low, high = np.clip(start, begins, ends), np.clip(stop, begins, ends)
    kept = np.flatnonzero(high > low)
    return View(fragment=kept, start=(low - begins)[kept], sizes=(high - low)[kept])


def view_of_rows(fragment_rows: Sequence[int], rows: Int64Array) -> View:
    """Return the view of listed rows, given in ascending order."""
    ends = np.cumsum(np.array(fragment_rows, dtype=np.int64))
    owner = np.searchsorted(ends, rows, side="right")
    kept, first, counts = np.unique(owner, return_index=True, return_counts=True)
    begins = np.concatenate([[0], ends])[kept] if len(kept) else np.empty(0, np.int64)
    parts = tuple(rows[f : f + n] - b for f, n, b in zip(first, counts, begins, strict=True))
    return View(fragment=kept, start=np.zeros_like(kept), sizes=counts.astype(np.int64), rows=parts)


def some_rows(size: int, amount: float, seed: int) -> Int64Array | None:
    """Return a random part of ``range(size)``, ascending; above 1, rows are repeated. None means all of them."""
    if amount == 1:
        return None
    order = permutation(size, seed=seed, epoch=0, use=RandomStream.SPLIT)
    whole, rest = divmod(int(size * amount + 1e-6), max(1, size))
    return np.sort(np.concatenate([*[order] * whole, order[:rest]]))
