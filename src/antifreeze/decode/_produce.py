"""Tasks into blocks, whoever runs them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from antifreeze.core import TooLarge
from antifreeze.decode._arena import Arena
from antifreeze.decode._block import Block, Decoded, Scatter
from antifreeze.decode._budget import OpenBudget
from antifreeze.decode._stream import Decoding, StreamReader
from antifreeze.decode._thread_progress import WAIT, ThreadProgress, location_of, spent
from antifreeze.distributed import Location
from antifreeze.plan import Order, ReadTask, Span


@dataclass(slots=True)
class _Round:
    """A round that is being put together."""

    dealer: Scatter
    left: int
    heaviest: tuple[float, int, int] = (0.0, 0, 0)
    """Bytes of a row, its fragment and its number there, of the piece with the heaviest rows."""


class Producer:
    """Makes the blocks of an epoch from its tasks.

    Tasks of different streams may be produced at the same time; those of one stream only one after the other.
    """

    def __init__(
        self,
        order: Order,
        decoding: Decoding,
        block: type[Decoded],
        arena: Arena,
        first_round: int = 0,
        *,
        round_nbytes: int,
    ) -> None:
        self.order, self.first_round = order, first_round
        self._round_nbytes = round_nbytes
        """What the rows of a round may weigh together; heavier ones are made in several passes."""
        self._budget = OpenBudget(decoding.limits.open_nbytes)
        self._decoding, self._block = decoding, block
        self.arena = arena
        self._lock = threading.Lock()
        self._rounds: dict[int, _Round] = {}
        self._streams: dict[int, StreamReader] = {}

    def produce(self, task: ReadTask, note: ThreadProgress) -> Iterator[Decoded]:
        """Yield what can be delivered once this task is done, in the order of its round."""
        reader = self._streams.setdefault(task.stream, StreamReader(self._decoding, self._budget))
        if self.order.is_shuffled:
            yield from self._scatter(task, reader, note)
        else:
            for span in task.spans:
                yield from self._read(reader, span, note)
        if not self.order.stays_open(task):
            self._streams.pop(task.stream).close()

    def _read(self, reader: StreamReader, span: Span, note: ThreadProgress) -> Iterator[Decoded]:
        view = self.order.view
        fragment, start = int(view.fragment[span.part]), int(view.start[span.part])
        if view.rows is not None:
            return reader.read(fragment, view.rows[span.part][span.start : span.stop], note)
        return reader.read(fragment, range(start + span.start, start + span.stop), note)

    def _scatter(self, task: ReadTask, reader: StreamReader, note: ThreadProgress) -> Iterator[Decoded]:
        round_ = self._round(task.round)
        first = task.first
        for span in task.spans:
            row = span.start
            for block in self._read(reader, span, note):
                round_.dealer.put(first, block)
                round_.heaviest = max(round_.heaviest, (block.nbytes / max(block.num_rows, 1), span.part, row))
                first += block.num_rows
                row += block.num_rows
                del block
        with self._lock:
            round_.left -= 1
            is_last = round_.left == 0
            if is_last and round_.dealer.passes.is_complete:
                del self._rounds[task.round]
            elif is_last:
                round_.left = len(self.order.tasks(task.round))
        if is_last:
            if round_.dealer.passes.is_too_heavy:
                raise self._too_heavy(round_)
            yield round_.dealer.finish()

    def needs_another_pass(self, round_: int) -> bool:
        """Whether the tasks of a round, all of which were produced, must be produced once more to complete it."""
        with self._lock:
            return round_ in self._rounds

    def _round(self, number: int) -> _Round:
        with self._lock:
            if number not in self._rounds:
                dealer = self._block.dealer(self.order.places(number), self.arena, self._round_nbytes)
                self._rounds[number] = _Round(dealer, len(self.order.tasks(number)))
            return self._rounds[number]

    def _too_heavy(self, round_: _Round) -> TooLarge:
        d, passes = self._decoding, round_.dealer.passes
        row_nbytes, part, row = round_.heaviest
        fragment, row = self.order.view.locate(part, row)
        path, group = d.paths[d.fragment_file[fragment]], d.fragment_group[fragment]
        return TooLarge(
            f"{path}, row group {group}: rows from {row} on take {row_nbytes / 1e6:,.1f} MB each, so the "
            f"{passes.num_places:,} rows that are shuffled together take {passes.seen_nbytes / 1e6:,.0f} MB; "
            f"memory_limit={d.limits.memory_limit / 1e6:,.0f} MB allows {passes.budget_nbytes / 1e6:,.0f} MB for them",
            hint="raise memory_limit, read without shuffle, or write these values to a column of their own",
            file=path,
            row_group=group,
            row=row,
            nbytes=passes.seen_nbytes,
            limit=d.limits.memory_limit,
        )

    def close(self) -> None:
        """Close all files. Only after every thread that produces has ended."""
        for reader in self._streams.values():
            reader.close()
        self._streams.clear()
        self._rounds.clear()


Release = Callable[[], None]


class Blocks(Protocol):
    """The blocks of an epoch, in order, whoever makes them."""

    def __iter__(self) -> Iterator[Block]: ...

    def __next__(self) -> Block: ...

    def is_ready(self) -> bool:
        """Tell whether the next block, or the end, can be had without waiting."""
        ...

    def hold(self, num_rows: int) -> Release:
        """Count rows of the last block, which wait for workers, as not delivered until what this returns is called.

        What is not held counts as delivered when the next block is taken.
        """
        ...

    def where(self) -> Location:
        """Return what is waited for, for other ranks. Called by another thread: it only looks."""
        ...

    def spent(self) -> dict[str, float]:
        """Return the seconds that were spent so far, by stage."""
        ...

    def check_process(self) -> None:
        """Raise in a process that was forked off and cannot go on with these blocks."""
        ...

    def close(self) -> None:
        """End what was started and free what is held. May be called twice."""
        ...


class InlineBlocks:
    """Makes the blocks of an epoch in the calling thread, as they are asked for."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._note = ThreadProgress("main thread")
        self._blocks = self._all()

    def _all(self) -> Iterator[Decoded]:
        note = self._note
        for round_ in range(self._producer.first_round, self._producer.order.num_rounds):
            is_complete = False
            while not is_complete:
                for task in self._producer.order.tasks(round_):
                    yield from self._producer.produce(task, note)
                is_complete = not self._producer.needs_another_pass(round_)

    def __iter__(self) -> Iterator[Decoded]:
        return self

    def __next__(self) -> Decoded:
        try:
            return next(self._blocks)
        finally:
            self._note.at(WAIT)

    def is_ready(self) -> bool:
        """Nobody else makes them: they are made when they are asked for."""
        return True

    def hold(self, num_rows: int) -> Release:  # noqa: ARG002
        """Nothing is decoded ahead, so there is nothing to count."""
        return lambda: None

    def where(self) -> Location:
        """Return where the calling thread stands."""
        return location_of([self._note])

    def spent(self) -> dict[str, float]:
        """Return the seconds that the calling thread has spent here."""
        return spent([self._note])

    def check_process(self) -> None:
        """Nothing to check: a child has all that is needed."""

    def close(self) -> None:
        """Close all files."""
        self._producer.close()
