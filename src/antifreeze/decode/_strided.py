"""Drops rows of blocks: those that were delivered before, or that belong to another rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antifreeze.decode._block import Block
from antifreeze.decode._produce import Blocks, Release
from antifreeze.distributed import Location


class StridedBlocks:
    """Every ``every``-th row of some blocks after the first ``skip``; with ``limit``, at most that many rows."""

    def __init__(self, blocks: Blocks, *, skip: int = 0, every: int = 1, limit: int | None = None) -> None:
        self._blocks, self._next, self._every = blocks, skip, every
        self._position = 0
        self._left = limit

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        while self._left is None or self._left > 0:
            block = next(self._blocks)
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
        return self._left == 0 or self._blocks.is_ready()

    def hold(self, num_rows: int) -> Release:
        """Count rows, and the dropped rows between them, until they are released."""
        return self._blocks.hold(num_rows * self._every)

    def where(self) -> Location:
        """Return the location that is waited for."""
        return self._blocks.where()

    def spent(self) -> dict[str, float]:
        """Return the seconds spent so far, by stage."""
        return self._blocks.spent()

    def check_process(self) -> None:
        """Raise in a forked process that cannot use these blocks."""
        self._blocks.check_process()

    def close(self) -> None:
        """Stop what was started. May be called twice."""
        self._blocks.close()
