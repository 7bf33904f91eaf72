"""Blocks into batches: many batches are handed over at a time and cut where they are used."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.workers import Block

Cut = tuple[Block, int, int]
"""The rows from start to stop of a block."""


def cut(blocks: Iterator[Block], batch_size: int, *, drop_last: bool) -> Iterator[Cut]:
    """Yield stretches of ``batch_size`` rows, without a copy unless one lies across blocks."""
    rest: list[Block] = []
    have = 0
    for block in blocks:
        start = 0
        if rest:
            start = min(batch_size - have, block.num_rows)
            rest.append(block.slice(0, start))
            have += start
            if have < batch_size:
                continue
            yield type(block).join(rest), 0, batch_size
            rest, have = [], 0
        for stop in range(start + batch_size, block.num_rows + 1, batch_size):
            yield block, start, stop
            start = stop
        if start < block.num_rows:
            have = block.num_rows - start
            rest = [block.slice(start, block.num_rows)]
        del block  # while the next one is awaited, this one's memory is not ours to hold
    if rest and not drop_last:
        yield type(rest[0]).join(rest), 0, have
