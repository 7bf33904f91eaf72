"""One epoch, or what is left of it, as one rank reads it."""

from __future__ import annotations

from typing import NamedTuple

from antifreeze.datasets import ReadOptions, ReadRequest, RowSource
from antifreeze.decode import Block, Blocks, StridedBlocks
from antifreeze.distributed import Ranks
from antifreeze.loaders._position import StreamPosition
from antifreeze.plan import EpochSteps, RankSlice


class StreamingEpoch(NamedTuple):
    """What a rank reads, from where to where."""

    source: RowSource
    reading: ReadRequest
    rank_slice: RankSlice
    steps: EpochSteps

    def blocks(self, options: ReadOptions) -> Blocks:
        """Start reading this rank's rows."""
        position = self.rank_slice.read.position(self.steps.first)
        blocks = self.source.blocks(self.reading, position, options)
        skip = self._first - position
        return (
            blocks
            if not skip and self.rank_slice.every == 1
            else StridedBlocks(blocks, skip=skip, every=self.rank_slice.every)
        )

    @property
    def _first(self) -> int:
        """The position of this rank's first row in the lanes that it reads."""
        position = self.rank_slice.read.position(self.steps.first)
        while not self.rank_slice.keeps(position):
            position += 1
        return position

    def sample(self, row: int) -> int:
        """Return the number in the epoch of one of this rank's rows, counted from the first that it delivers here."""
        return self.rank_slice.read.sample(self._first + row * self.rank_slice.every)

    def name(self, row: int) -> str:
        """Return the location of one of this rank's rows as text."""
        return self.source.sample_name(self.reading, self.sample(row))

    def spare(self) -> Block:
        """Return a row for the last step, for a rank that has none left there: the epoch's first ones are repeated."""
        num_rows, world_size = self.steps.num_rows, self.rank_slice.world_size
        beyond = num_rows + (self.rank_slice.rank - num_rows) % world_size
        return self.source.sample(self.reading, beyond % num_rows)

    def after(self, steps: int) -> StreamPosition:
        """Return the position after a number of steps; after the last one, it is the beginning of the next epoch."""
        batch, shapes, epoch = self.steps.global_batch, self.reading.shapes, self.reading.epoch
        if steps >= self.steps.number:
            return StreamPosition(epoch + 1, 0, batch, shapes)
        return StreamPosition(epoch, self.steps.after(steps), batch, shapes)


def rank_slice_of(ranks: Ranks, sample: int, lanes: int) -> RankSlice:
    """Return which rows of the lanes are this rank's, from a sample of the epoch on."""
    return RankSlice((ranks.rank + sample) % ranks.world_size, ranks.world_size, lanes)
