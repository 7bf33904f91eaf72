"""One epoch, or what is left of it, as one rank reads it."""

from __future__ import annotations

from typing import NamedTuple

from antifreeze.api._place import Place
from antifreeze.api._readable import Readable, Reading
from antifreeze.loader import Kept, Means
from antifreeze.plan import Seat, Steps
from antifreeze.ranks import Ranks
from antifreeze.workers import Block, Blocks


class Course(NamedTuple):
    """What a rank reads, from where to where."""

    dataset: Readable
    reading: Reading
    seat: Seat
    steps: Steps

    def blocks(self, means: Means) -> Blocks:
        """Start reading this rank's rows."""
        position = self.seat.read.position(self.steps.first)
        blocks = self.dataset._blocks(self.reading, position, means)
        skip = self._first - position
        return blocks if not skip and self.seat.every == 1 else Kept(blocks, skip=skip, every=self.seat.every)

    @property
    def _first(self) -> int:
        """Where the first of this rank's rows stands in the lanes that it reads."""
        position = self.seat.read.position(self.steps.first)
        while not self.seat.keeps(position):
            position += 1
        return position

    def sample(self, row: int) -> int:
        """Return the number in the epoch of one of this rank's rows, counted from the first that it delivers here."""
        return self.seat.read.sample(self._first + row * self.seat.every)

    def name(self, row: int) -> str:
        """Return in words where one of this rank's rows stands."""
        return self.dataset._sample_name(self.reading, self.sample(row))

    def spare(self) -> Block:
        """Return a row for the last step, for a rank that has none left there: the epoch's first ones are repeated."""
        num_rows, world_size = self.steps.num_rows, self.seat.world_size
        beyond = num_rows + (self.seat.rank - num_rows) % world_size
        return self.dataset._sample(self.reading, beyond % num_rows)

    def after(self, steps: int) -> Place:
        """Return the place after these many steps; after the last one, it is the beginning of the next epoch."""
        batch, shapes, epoch = self.steps.global_batch, self.reading.shapes, self.reading.epoch
        if steps >= self.steps.number:
            return Place(epoch + 1, 0, batch, shapes)
        return Place(epoch, self.steps.after(steps), batch, shapes)


def seat_of(ranks: Ranks, sample: int, lanes: int) -> Seat:
    """Return which rows of the lanes are this rank's, from a sample of the epoch on."""
    return Seat((ranks.rank + sample) % ranks.world_size, ranks.world_size, lanes)
