"""Cuts blocks into batches: many batches are delivered at a time, and cut where they are used."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from antifreeze.core import TooLarge
from antifreeze.decode._block import Block

_MIN_BATCH_NBYTES = 64 << 20
"""A batch of this size is delivered under any limit: the user requested it."""

BatchSlice = tuple[Block, int, int]
"""Rows ``start`` to ``stop`` of a block."""


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
