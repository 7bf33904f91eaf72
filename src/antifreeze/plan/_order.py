"""Which rows of which fragments are read (a view), and their order, as rounds that can be computed independently.

A round is a range of consecutive positions of the epoch, or of a rank's part of it. It consists of parts, each read
from one stream: a sequence of fragments that is cheapest to decode sequentially. Three orders share this shape:

Sequential   a round is one fragment; rows are delivered as they are decoded
Listed       a round is a range of a list of rows; its parts are the fragments that the list refers to there
Interleaved  a round takes some rows from each of several streams and scatters them (``_interleave``)
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antifreeze.plan._lanes import stretch
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of one part of a view."""

    part: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A range of one stream to decode. Carries positions, never data."""

    round: int
    stream: int
    first: int
    """Offset of the task's rows among the rows of the round, before they are scattered."""
    spans: tuple[Span, ...]

    @property
    def num_rows(self) -> int:
        """Rows over all spans."""
        return sum(span.stop - span.start for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Consecutive rows of several parts of a view, in sequence. Arrays, because there may be a million."""

    parts: Int64Array
    starts: Int64Array
    sizes: Int64Array

    def span(self, index: int) -> Span:
        """Return one of them."""
        start = int(self.starts[index])
        return Span(part=int(self.parts[index]), start=start, stop=start + int(self.sizes[index]))


def cut(view: View, parts: Int64Array, begin: int, stop: int) -> Spans:
    """Return the rows from ``begin`` to ``stop``, counted over the given parts in their order."""
    ends = np.cumsum(view.sizes[parts])
    low = int(np.searchsorted(ends, begin, side="right"))
    high = int(np.searchsorted(ends, stop, side="left")) + 1 if stop > begin else low
    kept, ends = parts[low:high], ends[low:high]
    begins = ends - view.sizes[kept]
    starts = np.maximum(begins, begin) - begins
    return Spans(parts=kept, starts=starts, sizes=np.minimum(ends, stop) - begins - starts)


class Order(Protocol):
    """The order of one epoch."""

    view: View
    num_rounds: int
    is_shuffled: bool
    """Whether rows are permuted within a round. If not, they can be delivered before the round is complete."""

    def start(self, round_: int) -> int:
        """Return the position in the epoch at which a round starts; ``start(num_rounds)`` is the number of rows."""
        ...

    def tasks(self, round_: int) -> tuple[ReadTask, ...]:
        """Return the tasks of a round. Together they read each of its rows once."""
        ...

    def positions(self, round_: int) -> Int64Array:
        """Return the position within the round of each of its rows, task by task."""
        ...

    def stays_open(self, task: ReadTask) -> bool:
        """Return True if a later task continues where this one ends, so that its fragment should stay open."""
        ...


class Sequential:
    """The rows in the order of the files: all of them, or those of one lane."""

    is_shuffled = False

    def __init__(self, view: View, lanes: int = 1, lane: int = 0) -> None:
        self.view = view
        self._spans = cut(view, np.arange(len(view.sizes)), *stretch(view.num_rows, lanes, lane))
        self.num_rounds = len(self._spans.parts)
        self._starts = np.concatenate([[0], np.cumsum(self._spans.sizes)])

    def start(self, round_: int) -> int:
        return int(self._starts[round_])

    def tasks(self, round_: int) -> tuple[ReadTask, ...]:
        return (ReadTask(round=round_, stream=round_, first=0, spans=(self._spans.span(round_),)),)

    def positions(self, round_: int) -> Int64Array:
        return np.arange(int(self._spans.sizes[round_]))

    def stays_open(self, task: ReadTask) -> bool:  # noqa: ARG002
        return False


class Listed:
    """Rows in the order of a list, which may contain them in any order and more than once."""

    is_shuffled = True

    def __init__(self, fragment_rows: Int64Array, rows: Int64Array, window_rows: int) -> None:
        self._window = window_rows
        self._num_rows = len(rows)
        self.num_rounds = -(-len(rows) // window_rows)
        self._positions, views = [], []
        self._first_part = [0]
        for begin in range(0, len(rows), window_rows):
            window = rows[begin : begin + window_rows]
            ascending = np.argsort(window, kind="stable")
            views.append(view_of_rows(fragment_rows.tolist(), window[ascending]))
            self._positions.append(ascending)
            self._first_part.append(self._first_part[-1] + len(views[-1].sizes))
        self.view = View(
            fragment=_joined([v.fragment for v in views]),
            start=_joined([v.start for v in views]),
            sizes=_joined([v.sizes for v in views]),
            rows=tuple(part for v in views for part in v.rows or ()),
        )

    def start(self, round_: int) -> int:
        return min(round_ * self._window, self._num_rows)

    def tasks(self, round_: int) -> tuple[ReadTask, ...]:
        tasks, first = [], 0
        for part in range(self._first_part[round_], self._first_part[round_ + 1]):
            span = Span(part=part, start=0, stop=int(self.view.sizes[part]))
            tasks.append(ReadTask(round=round_, stream=part, first=first, spans=(span,)))
            first += span.stop
        return tuple(tasks)

    def positions(self, round_: int) -> Int64Array:
        return self._positions[round_]

    def stays_open(self, task: ReadTask) -> bool:  # noqa: ARG002
        return False


def _joined(parts: list[Int64Array]) -> Int64Array:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def round_at(order: Order, position: int) -> int:
    """Return the round that delivers a position of the epoch; the number of rounds, if none does."""
    return bisect.bisect_right(range(order.num_rounds), position, key=lambda round_: order.start(round_ + 1))


def locate(order: Order, position: int) -> tuple[int, int]:
    """Return the fragment and the row in it that an epoch delivers at a position. For messages; not fast."""
    round_ = round_at(order, position)
    if round_ == order.num_rounds:
        raise IndexError(f"position {position} of {order.start(order.num_rounds)}")
    at = int(np.flatnonzero(order.positions(round_) == position - order.start(round_))[0])
    for task in order.tasks(round_):
        offset = at - task.first
        for span in task.spans:
            if offset < span.stop - span.start:
                return order.view.locate(span.part, span.start + offset)
            offset -= span.stop - span.start
    raise AssertionError(f"round {round_} has no row for each of its positions")
