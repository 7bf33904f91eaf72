"""Blocks into batches: many batches are handed over at a time and cut where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from antifreeze.workers import Block

Cut = tuple[Block, int, int]
"""The rows from start to stop of a block."""


class Cuts:
    """Stretches of ``batch_size`` rows, without a copy unless one lies across blocks."""

    def __init__(
        self,
        blocks: Iterator[Block],
        batch_size: int,
        *,
        drop_last: bool,
        blocks_are_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._batch_size, self._drop_last = batch_size, drop_last
        self._blocks_are_ready = blocks_are_ready
        self._whole = False
        self._cuts = self._cut(blocks)

    def __iter__(self) -> Iterator[Cut]:
        return self

    def __next__(self) -> Cut:
        return next(self._cuts)

    def is_ready(self) -> bool:
        """Tell whether another stretch can be had without waiting for a block."""
        return self._whole or self._blocks_are_ready()

    def _cut(self, blocks: Iterator[Block]) -> Iterator[Cut]:
        rest: list[Block] = []
        have, size = 0, self._batch_size
        for block in blocks:
            start = 0
            if rest:
                start = min(size - have, block.num_rows)
                rest.append(block.slice(0, start))
                have += start
                if have < size:
                    continue
                self._whole = start + size <= block.num_rows
                yield type(block).join(rest), 0, size
                rest, have = [], 0
            for stop in range(start + size, block.num_rows + 1, size):
                self._whole = stop + size <= block.num_rows
                yield block, start, stop
                start = stop
            if start < block.num_rows:
                have = block.num_rows - start
                rest = [block.slice(start, block.num_rows)]
            del block  # while the next one is awaited, this one's memory is not ours to hold
        if rest and not self._drop_last:
            yield type(rest[0]).join(rest), 0, have
