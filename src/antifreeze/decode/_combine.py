"""Combines the blocks of several datasets (mixed, side by side, or one after the other), and cuts them into batches.

Many batches are delivered at a time, and cut where they are used.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antifreeze.core import Location, TooLarge
from antifreeze.decode._block import Block
from antifreeze.decode._produce import Blocks, Release
from antifreeze.plan import Int64Array, Mix

_MIN_BATCH_NBYTES = 64 << 20
"""A batch of this size is delivered under any limit: the user requested it."""

BatchSlice = tuple[Block, int, int]
"""Rows ``start`` to ``stop`` of a block."""


class CombinedBlocks:
    """Blocks made from those of several sources: ready when all are, and closed together."""

    def __init__(
        self, sources: list[Blocks], made: Iterator[Block], over: Counter[str] | None = None, *, is_mixed: bool = False
    ) -> None:
        self._sources, self._made, self._is_mixed = sources, made, is_mixed
        self._over: Mapping[str, float] = over if over is not None else {}
        """Seconds spent by sources that ended before others started."""

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        return next(self._made)

    def is_ready(self) -> bool:
        return all(source.is_ready() for source in self._sources)

    def hold(self, num_rows: int) -> Release:
        """Count rows until they are released. The source of a mixed row is unknown, so each source counts a part."""
        each_rows = -(-num_rows // len(self._sources)) if self._is_mixed and self._sources else num_rows
        releases = [source.hold(each_rows) for source in self._sources]

        def release() -> None:
            for each in releases:
                each()

        return release

    def where(self) -> Location:
        """Return the location of the source that has been stalled longest."""
        return max(
            (source.where() for source in self._sources), key=lambda location: location.still_s, default=Location()
        )

    def spent(self) -> dict[str, float]:
        total = Counter(self._over)
        for source in self._sources:
            total.update(source.spent())
        return dict(total)

    def check_process(self) -> None:
        for source in self._sources:
            source.check_process()

    def close(self) -> None:
        for source in self._sources:
            source.close()


class StridedBlocks(CombinedBlocks):
    """Every ``every``-th row of some blocks after the first ``skip``; with ``limit``, at most that many rows.

    Drops what was delivered before, or belongs to another rank.
    """

    def __init__(self, blocks: Blocks, *, skip: int = 0, every: int = 1, limit: int | None = None) -> None:
        super().__init__([blocks], iter(blocks))
        self._next, self._every = skip, every
        self._position = 0
        self._left = limit

    def __next__(self) -> Block:
        while self._left is None or self._left > 0:
            block = super().__next__()
            first, stop = self._next - self._position, block.num_rows
            self._position += block.num_rows
            if first >= stop:
                continue
            rows = np.arange(first, stop, self._every)[: self._left]
            self._next += len(rows) * self._every
            if self._left is not None:
                self._left -= len(rows)
            return block.slice(first, first + len(rows)) if self._every == 1 else block.take(rows)
        raise StopIteration

    def is_ready(self) -> bool:
        """Return True if the next block, or the end, is available without waiting. All its rows may be dropped."""
        return self._left == 0 or super().is_ready()

    def hold(self, num_rows: int) -> Release:
        """Count rows, and the dropped rows between them, until they are released."""
        return super().hold(num_rows * self._every)


def mixed(sources: list[Blocks], mix: Mix, positions: Callable[[int], Int64Array], first_block: int) -> CombinedBlocks:
    """Return rows of several datasets in the order of a mixture, starting at one of its blocks.

    ``positions`` returns, for a block, the position of each of its rows among those that the datasets deliver for it.
    """

    def make() -> Iterator[Block]:
        rows = [RowBuffer(source) for source in sources]
        for block in range(first_block, mix.num_blocks):
            where = positions(block)
            counts = mix.counts(block)
            wanted = [len(where) * n // sum(counts) for n in counts]
            parts = [part for source, n in zip(rows, wanted, strict=True) for part in source.take(n)]
            yield joined(parts).take(where)

    return CombinedBlocks(sources, make(), is_mixed=True)


def side_by_side(sources: list[Blocks]) -> CombinedBlocks:
    """Return rows of several datasets in parallel, as ``zip`` does."""

    def make() -> Iterator[Block]:
        rows = [RowBuffer(source) for source in sources]
        while (size := min(source.fill() for source in rows)) > 0:
            yield Pairs(tuple(joined(source.take(size)) for source in rows))

    return CombinedBlocks(sources, make())


def one_after_the_other(starts: Iterator[Callable[[], Blocks]]) -> CombinedBlocks:
    """Return the blocks of several sources in sequence. Each source is started when the previous one has ended."""
    sources: list[Blocks] = []
    over: Counter[str] = Counter()

    def make() -> Iterator[Block]:
        for start in starts:
            sources[:] = [start()]
            yield from sources[0]
            sources[0].close()
            over.update(sources.pop().spent())

    return CombinedBlocks(sources, make(), over)


class RowBuffer:
    """Buffers blocks, so that rows can be taken by number."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._rest: Block | None = None

    def fill(self) -> int:
        """Return the number of buffered rows, at least one; 0 at the end."""
        while self._rest is None or not self._rest.num_rows:
            self._rest = next(iter(self._blocks), None)
            if self._rest is None:
                return 0
        return self._rest.num_rows

    def take(self, number: int) -> list[Block]:
        """Return ``number`` rows, or all that are left."""
        found: list[Block] = []
        while number and (have := self.fill()) and self._rest is not None:
            size = min(number, have)
            found.append(self._rest.slice(0, size))
            self._rest = self._rest.slice(size, have) if size < have else None
            number -= size
        return found


def joined(blocks: Sequence[Any]) -> Any:
    """Return the rows of some blocks as one block."""
    return blocks[0] if len(blocks) == 1 else type(blocks[0]).join(blocks)


class Pairs:
    """Rows of several datasets side by side."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        self.num_rows: int = parts[0].num_rows
        self.nbytes: int = sum(part.nbytes for part in parts)

    def slice(self, start: int, stop: int) -> Pairs:
        return Pairs(tuple(part.slice(start, stop) for part in self.parts))

    def detach(self, start: int, stop: int) -> tuple[Pairs, int, int]:
        parts = [part.detach(start, stop) for part in self.parts]
        if all(part is own for (part, _, _), own in zip(parts, self.parts, strict=True)):
            return self, start, stop
        return Pairs(tuple(part.slice(first, last) for part, first, last in parts)), 0, stop - start

    def take(self, rows: Any) -> Pairs:
        return Pairs(tuple(part.take(rows) for part in self.parts))

    @classmethod
    def join(cls, blocks: Sequence[Pairs]) -> Pairs:
        return Pairs(tuple(joined(parts) for parts in zip(*(block.parts for block in blocks), strict=True)))


# -- batches -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ahead:
    """What is known about the next slice. Not part of ``Rebatcher``, which its generator would keep alive."""

    is_whole: bool = False
    """Whether it is within the current block."""


class Rebatcher:
    """Slices of ``batch_size`` rows, without a copy unless one spans blocks.

    With ``count``, exactly that many; if rows run out, ``spare`` supplies some.
    """

    def __init__(
        self,
        blocks: Iterator[Block],
        batch_size: int,
        *,
        count: int | None = None,
        spare: Callable[[], Block] | None = None,
        blocks_are_ready: Callable[[], bool] = lambda: True,
        memory_limit: int | None = None,
    ) -> None:
        self._blocks_are_ready = blocks_are_ready
        self._ahead = _Ahead()
        cuts = _cut(blocks, batch_size, self._ahead, memory_limit)
        self._cuts = cuts if count is None else _counted(cuts, count, spare)

    def __iter__(self) -> Iterator[BatchSlice]:
        return self

    def __next__(self) -> BatchSlice:
        return next(self._cuts)

    def is_ready(self) -> bool:
        """Return True if another slice is available without waiting for a block."""
        return self._ahead.is_whole or self._blocks_are_ready()


def _cut(blocks: Iterator[Block], size: int, ahead: _Ahead, memory_limit: int | None) -> Iterator[BatchSlice]:
    rest: list[Block] = []
    have = 0
    max_nbytes = math.inf if memory_limit is None else max(memory_limit, _MIN_BATCH_NBYTES)
    for block in blocks:
        start = 0
        if rest:
            start = min(size - have, block.num_rows)
            rest.append(block.slice(0, start))
            have += start
            if (nbytes := sum(part.nbytes for part in rest)) > max_nbytes:
                raise _too_large(size, have, nbytes, memory_limit or 0)
            if have < size:
                continue
            ahead.is_whole = start + size <= block.num_rows
            yield type(block).join(rest), 0, size
            rest, have = [], 0
        for stop in range(start + size, block.num_rows + 1, size):
            ahead.is_whole = stop + size <= block.num_rows
            yield block, start, stop
            start = stop
        if start < block.num_rows:
            have = block.num_rows - start
            rest = [block.slice(start, block.num_rows)]
        del block  # do not keep its memory while waiting for the next one
    if rest:
        yield type(rest[0]).join(rest), 0, have


def _too_large(size: int, have: int, nbytes: int, memory_limit: int) -> TooLarge:
    return TooLarge(
        f"a batch of {size:,} rows does not fit in memory_limit={memory_limit / 1e6:,.0f} MB: its first {have:,} rows "
        f"take {nbytes / 1e6:,.0f} MB",
        hint="lower batch_size, raise memory_limit, or leave large columns out with columns=[...]",
        file="",
        nbytes=nbytes,
        limit=memory_limit,
    )


def _counted(cuts: Iterator[BatchSlice], count: int, spare: Callable[[], Block] | None) -> Iterator[BatchSlice]:
    """Yield ``count`` slices: every rank has the same number, whether it has enough rows or not."""
    found = 0
    for found, cut in enumerate(itertools.islice(cuts, count), 1):  # noqa: B007
        yield cut
    if spare is not None:
        for _ in range(found, count):
            block = spare()
            yield block, 0, block.num_rows
