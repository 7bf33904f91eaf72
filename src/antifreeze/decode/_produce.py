"""Turns tasks into blocks, in decoder threads or in the calling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from antifreeze.core import Location, TooLarge
from antifreeze.decode._block import Arena, Block, Decoded, Scatter
from antifreeze.decode._stream import Decoding, OpenBudget, StreamReader
from antifreeze.decode._thread_progress import WAIT, ThreadProgress, location_of, spent
from antifreeze.plan import Order, ReadTask, Span


@dataclass(slots=True)
class _Round:
    """A round that is being assembled."""

    scatter: Scatter
    left: int
    heaviest: tuple[float, int, int] = (0.0, 0, 0)
    """Bytes per row, fragment and row number of the piece with the largest rows."""


class Producer:
    """Makes the blocks of an epoch from its tasks.

    Tasks of different streams may run concurrently; those of one stream run one after the other.
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
        """Maximum size of a round in one pass; larger ones take several passes."""
        self._budget = OpenBudget(decoding.limits.open_nbytes)
        self._decoding, self._block = decoding, block
        self.arena = arena
        self._lock = threading.Lock()
        self._rounds: dict[int, _Round] = {}
        self._streams: dict[int, StreamReader] = {}

    def produce(self, task: ReadTask, note: ThreadProgress) -> Iterator[Decoded]:
        """Yield the blocks that can be delivered once this task is done, in the order of its round."""
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
                round_.scatter.put(first, block)
                round_.heaviest = max(round_.heaviest, (block.nbytes / max(block.num_rows, 1), span.part, row))
                first += block.num_rows
                row += block.num_rows
                del block
        with self._lock:
            round_.left -= 1
            is_last = round_.left == 0
            if is_last and round_.scatter.passes.is_complete:
                del self._rounds[task.round]
            elif is_last:
                round_.left = len(self.order.tasks(task.round))
        if is_last:
            if round_.scatter.passes.is_too_heavy:
                raise self._too_heavy(round_)
            yield round_.scatter.finish()

    def needs_another_pass(self, round_: int) -> bool:
        """Return True if the tasks of a finished round must run once more to complete it."""
        with self._lock:
            return round_ in self._rounds

    def _round(self, number: int) -> _Round:
        with self._lock:
            if number not in self._rounds:
                scatter = self._block.scatter(self.order.positions(number), self.arena, self._round_nbytes)
                self._rounds[number] = _Round(scatter, len(self.order.tasks(number)))
            return self._rounds[number]

    def _too_heavy(self, round_: _Round) -> TooLarge:
        d, passes = self._decoding, round_.scatter.passes
        row_nbytes, part, row = round_.heaviest
        fragment, row = self.order.view.locate(part, row)
        path, group = d.paths[d.fragment_file[fragment]], d.fragment_group[fragment]
        return TooLarge(
            f"{path}, row group {group}: rows from row {row} take {row_nbytes / 1e6:,.1f} MB each, so the "
            f"{passes.num_positions:,} rows that are shuffled together take {passes.seen_nbytes / 1e6:,.0f} MB; "
            f"memory_limit={d.limits.memory_limit / 1e6:,.0f} MB allows {passes.budget_nbytes / 1e6:,.0f} MB for them",
            hint="raise memory_limit, read without shuffle, or write these values to a separate column",
            file=path,
            row_group=group,
            row=row,
            nbytes=passes.seen_nbytes,
            limit=d.limits.memory_limit,
        )

    def close(self) -> None:
        """Close all files. Call it only after all decoder threads have ended."""
        for reader in self._streams.values():
            reader.close()
        self._streams.clear()
        self._rounds.clear()


Release = Callable[[], None]


class Blocks(Protocol):
    """The blocks of an epoch, in order."""

    def __iter__(self) -> Iterator[Block]: ...

    def __next__(self) -> Block: ...

    def is_ready(self) -> bool:
        """Return True if the next block, or the end, is available without waiting."""
        ...

    def hold(self, num_rows: int) -> Release:
        """Count rows of the last block as held for workers until the returned function is called.

        Other rows count as delivered when the next block is taken.
        """
        ...

    def where(self) -> Location:
        """Return the location that is waited for, for other ranks. Called by another thread; read-only."""
        ...

    def spent(self) -> dict[str, float]:
        """Return the seconds spent so far, by stage."""
        ...

    def check_process(self) -> None:
        """Raise in a forked process that cannot use these blocks."""
        ...

    def close(self) -> None:
        """Stop what was started and free what is held. May be called twice."""
        ...


class InlineBlocks:
    """Makes the blocks of an epoch in the calling thread, on demand."""

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
        """Return True: blocks are made on demand, so there is nothing to wait for."""
        return True

    def hold(self, num_rows: int) -> Release:  # noqa: ARG002
        """Do nothing: nothing is decoded ahead, so there is nothing to count."""
        return lambda: None

    def where(self) -> Location:
        return location_of([self._note])

    def spent(self) -> dict[str, float]:
        return spent([self._note])

    def check_process(self) -> None:
        """Do nothing: a forked process can use these blocks."""

    def close(self) -> None:
        self._producer.close()
