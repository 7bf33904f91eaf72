"""Blocks without the rows that are not wanted: those that were delivered before, or that belong to another rank."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antifreeze.ranks import Place
from antifreeze.workers import Block, Blocks


class Kept:
    """Every so-many-th row of some blocks, from one of them on."""

    def __init__(self, blocks: Blocks, *, skip: int, every: int = 1) -> None:
        self._blocks, self._next, self._every = blocks, skip, every
        self._position = 0

    def __iter__(self) -> Iterator[Block]:
        return self

    def __next__(self) -> Block:
        while True:
            block = next(self._blocks)
            first, stop = self._next - self._position, block.num_rows
            self._position += block.num_rows
            if first >= stop:
                continue
            rows = np.arange(first, stop, self._every)
            self._next += len(rows) * self._every
            return block.slice(first, stop) if self._every == 1 else block.take(rows)

    def is_ready(self) -> bool:
        """Tell whether the next block, or the end, can be had without waiting. It may turn out to be left out."""
        return self._blocks.is_ready()

    def where(self) -> Place:
        """Return what is waited for."""
        return self._blocks.where()

    def spent(self) -> dict[str, float]:
        """Return the seconds that were spent so far, by stage."""
        return self._blocks.spent()

    def check_process(self) -> None:
        """Raise in a process that was forked off and cannot go on with these blocks."""
        self._blocks.check_process()

    def close(self) -> None:
        """End what was started. May be called twice."""
        self._blocks.close()
