"""The order in which the lanes of an epoch are interleaved, shuffled or not.

Problem. A shuffled batch wants rows from everywhere, but a row group can only be decoded from its start, and is large.
A shuffle buffer that is drawn from at random depends on its history, so a position within an epoch cannot be computed,
only replayed. And the samples of a global step must not depend on the number of ranks or workers.

Guarantees:

- Every row once. The order is a pure function of view, lanes, seed, epoch, window and number of streams.
- Any round is found by arithmetic, in the same time at 1 % and at 99 % of an epoch.
- All streams of a lane end together, so the last batch is as mixed as the first, and no fragment is decoded twice.
- Every round takes the same number of rows from every lane, so lanes can be interleaved row by row.

Assumptions. Fragments are cheap to decode sequentially and expensive to reopen. ``permutation`` is stable across
releases and platforms: saved states depend on it. Streams, window and lanes are saved with a position, because they
follow from memory limits and columns, which another run may choose differently.

Tried, or considered:

- A shuffle buffer over whole fragments. It decodes into memory that has left the cache by the time a row is drawn, and
  a position can only be found again by replaying what was drawn before.
- The same number of rows from every stream. Short streams end early, and the last rounds come from the few long ones,
  badly mixed.
- Rounding each stream on its own: before round r of R, stream s of length n has given n * r // R rows. One
  multiplication, but the rows of a round vary, so that lanes cannot be interleaved row by row.
- Whole fragments per rank. Ranks have different numbers of rows, and steps depend on how many ranks there are.
- One permutation of all rows. It needs memory of the size of the dataset, and decodes each row group many times.
"""

# Invariant: ``apportion`` adds up to the rows of a round, and never decreases for any stream as rounds advance. So a
# stream is never asked to return a row, and a lane takes exactly its window per round (Webster's method has both
# properties).

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from antifreeze.plan._lanes import Lanes, apportion, stretch
from antifreeze.plan._order import ReadTask, Span, Spans, View, cut
from antifreeze.plan._permute import Int64Array, RandomStream, permutation


class Shuffling(NamedTuple):
    """What the order of a shuffled epoch depends on, besides the rows."""

    seed: int
    epoch: int
    window_rows: int
    """Number of rows of a lane that are permuted together."""
    streams: int
    """Number of fragments of a lane that are read at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lane:
    """One lane: its number, and the rows of each of its streams."""

    number: int
    streams: tuple[Spans, ...]
    ends: tuple[Int64Array, ...]
    """End of each span, counted in rows of the stream."""
    lengths: tuple[int, ...]


class Interleaved:
    """Some lanes of an epoch, interleaved row by row.

    Shuffled, the fragments are permuted and cut into lanes of equal length. Those of a lane are assigned to its streams
    in turn. A round takes the same number of rows from every lane, from its streams in proportion to their lengths.
    Then the rows of each lane are permuted within the round. Not shuffled, a lane is one stream, in order.
    """

    is_shuffled = True

    def __init__(self, view: View, lanes: Lanes, shuffling: Shuffling | None, *, window_rows: int = 1) -> None:
        self.view = view
        self._lanes, self._shuffling = lanes, shuffling
        longest = -(-view.num_rows // lanes.total)
        wanted = window_rows if shuffling is None else shuffling.window_rows
        self.num_rounds = -(-longest // wanted)
        # Not the wanted window: rounds of equal size have no small last one, whose rows would be mixed with few others.
        self._window = -(-longest // self.num_rounds) if self.num_rounds else 1
        parts = self._ordered_parts()
        self._made = [self._lane(number, parts) for number in lanes.numbers]
        self._sizes = [sum(lane.lengths) for lane in self._made]
        self._streams = max((len(lane.streams) for lane in self._made), default=1)
        # The end of a round is the start of the next, and threads work on a few rounds at a time.
        self._taken = functools.lru_cache(maxsize=4)(self._count_taken)

    def _ordered_parts(self) -> Int64Array:
        size, shuffling = len(self.view.sizes), self._shuffling
        if shuffling is None:
            return np.arange(size)
        # Invariant: one permutation for all lanes. Each rank computes it alone, and all must cut the same sequence.
        return permutation(size, seed=shuffling.seed, epoch=shuffling.epoch, use=RandomStream.FRAGMENTS)

    def _lane(self, number: int, parts: Int64Array) -> _Lane:
        spans = cut(self.view, parts, *stretch(self.view.num_rows, self._lanes.total, number))
        # A stream without fragments would have no length to be apportioned by.
        count = min(1 if self._shuffling is None else self._shuffling.streams, len(spans.parts))
        # Invariant: streams differ by at most one fragment, so that none dominates a round.
        streams = tuple(
            Spans(parts=spans.parts[j::count], starts=spans.starts[j::count], sizes=spans.sizes[j::count])
            for j in range(count)
        )
        ends = tuple(np.cumsum(stream.sizes) for stream in streams)
        return _Lane(number, streams, ends, tuple(int(e[-1]) for e in ends))

    def _in_lane(self, lane: int, round_: int) -> int:
        """Return the number of rows of a lane in all rounds before this one."""
        return min(round_ * self._window, self._sizes[lane])

    def _count_taken(self, round_: int) -> list[list[int]]:
        """Return the number of rows of each stream of each lane in all rounds before this one."""
        return [apportion(self._in_lane(i, round_), lane.lengths) for i, lane in enumerate(self._made)]

    def start(self, round_: int) -> int:
        return sum(self._in_lane(i, round_) for i in range(len(self._made)))

    def tasks(self, round_: int) -> tuple[ReadTask, ...]:
        tasks, first = [], 0
        before, after = self._taken(round_), self._taken(round_ + 1)
        for i, lane in enumerate(self._made):
            for j in range(len(lane.streams)):
                begin, stop = before[i][j], after[i][j]
                # Order: lane by lane, stream by stream. ``positions`` names the rows of a round in the same order.
                if stop > begin:
                    spans = _between(lane.streams[j], lane.ends[j], begin, stop)
                    tasks.append(ReadTask(round=round_, stream=i * self._streams + j, first=first, spans=spans))
                    first += stop - begin
        return tuple(tasks)

    def positions(self, round_: int) -> Int64Array:
        count = len(self._made)
        positions = []
        for i, lane in enumerate(self._made):
            size = self._in_lane(i, round_ + 1) - self._in_lane(i, round_)
            if self._shuffling is None:
                order = np.arange(size)
            else:
                seed, epoch = self._shuffling.seed, self._shuffling.epoch
                # By the lane's number in the epoch, not on this rank: another number of ranks gives the same order.
                order = permutation(
                    size, seed=seed, epoch=epoch, use=RandomStream.ROUND, index=round_, lane=lane.number
                )
            # Lanes with one more row come first, so that no position is left empty in the last round.
            positions.append(order * count + i)
        return np.concatenate(positions) if positions else np.arange(0)

    def stays_open(self, task: ReadTask) -> bool:
        # All streams of a lane end together, in the last round, so that until then each has rows left.
        return task.round + 1 < self.num_rounds


def interleaved(rows: Int64Array, lanes: Lanes) -> Int64Array:
    """Return the rows of a list that belong to some lanes, interleaved row by row."""
    parts = [rows[slice(*stretch(len(rows), lanes.total, number))] for number in lanes.numbers]
    found = np.empty(sum(map(len, parts)), np.int64)
    for i, part in enumerate(parts):
        found[i :: len(parts)] = part
    return found


def _between(spans: Spans, ends: Int64Array, begin: int, stop: int) -> tuple[Span, ...]:
    """Return the rows from ``begin`` to ``stop`` of a stream."""
    found = []
    # By bisection: a stream may have a hundred thousand spans, and a round begins anywhere in it.
    at = int(np.searchsorted(ends, begin, side="right"))
    while begin < stop:
        upto = min(stop, int(ends[at]))
        base = int(ends[at] - spans.sizes[at]) - int(spans.starts[at])
        found.append(Span(part=int(spans.parts[at]), start=begin - base, stop=upto - base))
        begin, at = upto, at + 1
    return tuple(found)
