"""The order of an epoch, as rounds that can each be made on their own.

A round is a stretch of consecutive positions of the epoch. It is made of parts, each read from one stream: a
sequence of fragments that is cheapest to decode from front to back. Three orders share this shape:

Sequential   a round is one fragment; rows are delivered as they are decoded
Listed       a round is a stretch of a list of rows; its parts are the fragments that the list names there
Shuffled     a round takes some rows from each of several streams and deals them to random positions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antifreeze.plan._permute import Longs, Use, permutation
from antifreeze.plan._view import View, view_of_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Consecutive rows of one part of a view."""

    part: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One stretch of one stream to decode. Carries positions, never data."""

    round: int
    stream: int
    first: int
    """Where the task's rows begin among the rows of the round, before they are dealt."""
    spans: tuple[Span, ...]

    @property
    def num_rows(self) -> int:
        """Rows over all spans."""
        return sum(span.stop - span.start for span in self.spans)


class Order(Protocol):
    """The order of one epoch."""

    view: View
    num_rounds: int
    deals: bool
    """Whether rows change places within a round. If not, they can be delivered before the round is complete."""

    def start(self, round_: int) -> int:
        """Return the position in the epoch at which a round begins; ``start(num_rounds)`` is the number of rows."""
        ...

    def tasks(self, round_: int) -> tuple[Task, ...]:
        """Return the tasks of a round. Together they read each of its rows once."""
        ...

    def places(self, round_: int) -> Longs:
        """Return for each row of the round, task after task, its place within the round."""
        ...

    def stays_open(self, task: Task) -> bool:
        """Whether a later task goes on where this one ends, so that its fragment should stay open."""
        ...


class Sequential:
    """The rows as they stand in the files."""

    deals = False

    def __init__(self, view: View) -> None:
        self.view = view
        self.num_rounds = len(view.sizes)
        self._starts = np.concatenate([[0], np.cumsum(view.sizes)])

    def start(self, round_: int) -> int:
        return int(self._starts[round_])

    def tasks(self, round_: int) -> tuple[Task, ...]:
        span = Span(part=round_, start=0, stop=int(self.view.sizes[round_]))
        return (Task(round=round_, stream=round_, first=0, spans=(span,)),)

    def places(self, round_: int) -> Longs:
        return np.arange(int(self.view.sizes[round_]))

    def stays_open(self, task: Task) -> bool:  # noqa: ARG002
        return False


class Listed:
    """Rows in the order of a list, which may name them in any order and more than once."""

    deals = True

    def __init__(self, fragment_rows: Longs, rows: Longs, window_rows: int) -> None:
        self._window = window_rows
        self._num_rows = len(rows)
        self.num_rounds = -(-len(rows) // window_rows)
        self._places, views = [], []
        self._first_part = [0]
        for begin in range(0, len(rows), window_rows):
            window = rows[begin : begin + window_rows]
            ascending = np.argsort(window, kind="stable")
            views.append(view_of_rows(fragment_rows.tolist(), window[ascending]))
            self._places.append(ascending)
            self._first_part.append(self._first_part[-1] + len(views[-1].sizes))
        self.view = View(
            fragment=np.concatenate([v.fragment for v in views]),
            start=np.concatenate([v.start for v in views]),
            sizes=np.concatenate([v.sizes for v in views]),
            rows=tuple(part for v in views for part in v.rows or ()),
        )

    def start(self, round_: int) -> int:
        return min(round_ * self._window, self._num_rows)

    def tasks(self, round_: int) -> tuple[Task, ...]:
        tasks, first = [], 0
        for part in range(self._first_part[round_], self._first_part[round_ + 1]):
            span = Span(part=part, start=0, stop=int(self.view.sizes[part]))
            tasks.append(Task(round=round_, stream=part, first=first, spans=(span,)))
            first += span.stop
        return tuple(tasks)

    def places(self, round_: int) -> Longs:
        return self._places[round_]

    def stays_open(self, task: Task) -> bool:  # noqa: ARG002
        return False


class Shuffled:
    """Fragments in random order, read through several streams, rows dealt anew within each round.

    The permuted fragments are dealt to ``streams`` streams in turn. A round takes from every stream a share of its
    rows, in proportion to the stream's length, so that all streams last until the end of the epoch: the last batch
    is as mixed as the first, no fragment is read twice, and any round is found by arithmetic.
    """

    deals = True

    def __init__(self, view: View, *, seed: int, epoch: int, window_rows: int, streams: int) -> None:
        self.view = view
        self._seed, self._epoch = seed, epoch
        order = permutation(len(view.sizes), seed=seed, epoch=epoch, use=Use.FRAGMENTS)
        self._streams = [order[j::streams] for j in range(min(streams, len(order)))]
        self._ends = [np.cumsum(view.sizes[parts]) for parts in self._streams]
        self._lengths = np.array([ends[-1] for ends in self._ends], dtype=np.int64)
        self.num_rounds = -(-view.num_rows // window_rows)

    def _taken(self, round_: int) -> Longs:
        """Return how many rows of each stream all rounds before this one take together."""
        # Python's integers: lengths times rounds may pass 2**63.
        return np.array([int(n) * round_ // self.num_rounds for n in self._lengths], dtype=np.int64)

    def start(self, round_: int) -> int:
        return int(self._taken(round_).sum())

    def tasks(self, round_: int) -> tuple[Task, ...]:
        tasks, first = [], 0
        begins, stops = self._taken(round_).tolist(), self._taken(round_ + 1).tolist()
        for stream, (begin, stop) in enumerate(zip(begins, stops, strict=True)):
            if stop > begin:
                spans = self._spans(stream, begin, stop)
                tasks.append(Task(round=round_, stream=stream, first=first, spans=spans))
                first += stop - begin
        return tuple(tasks)

    def _spans(self, stream: int, begin: int, stop: int) -> tuple[Span, ...]:
        ends, spans = self._ends[stream], []
        at = int(np.searchsorted(ends, begin, side="right"))
        while begin < stop:
            upto = min(stop, int(ends[at]))
            part = int(self._streams[stream][at])
            base = int(ends[at] - self.view.sizes[part])
            if upto > begin:
                spans.append(Span(part=part, start=begin - base, stop=upto - base))
            begin, at = upto, at + 1
        return tuple(spans)

    def places(self, round_: int) -> Longs:
        size = self.start(round_ + 1) - self.start(round_)
        return permutation(size, seed=self._seed, epoch=self._epoch, use=Use.ROUND, index=round_)

    def stays_open(self, task: Task) -> bool:
        return task.round + 1 < self.num_rounds


def locate(order: Order, position: int) -> tuple[int, int]:
    """Return the fragment and the row in it that an epoch delivers at a position. For messages; not fast."""
    low, high = 0, order.num_rounds - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if order.start(middle) <= position else (low, middle - 1)
    at = int(np.flatnonzero(order.places(low) == position - order.start(low))[0])
    for task in order.tasks(low):
        offset = at - task.first
        for span in task.spans:
            if offset < span.stop - span.start:
                return order.view.locate(span.part, span.start + offset)
            offset -= span.stop - span.start
    raise IndexError(f"position {position} of {order.start(order.num_rounds)}")
