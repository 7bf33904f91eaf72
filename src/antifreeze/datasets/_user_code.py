"""The user's functions: what they are called with, and what is raised when they fail.

What belongs to worker processes is imported where user code runs: reading without user code needs none of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antifreeze.core import UserCodeError
from antifreeze.datasets._delivery import Batch
from antifreeze.datasets._memory_limit import parse_limit
from antifreeze.datasets._reading import ReadOptions
from antifreeze.datasets._row_code import Moment, RowBatch, RowCode, call, row_batch
from antifreeze.datasets._row_source import ReadRequest, RowDataset, RowSource
from antifreeze.decode import Rebatcher
from antifreeze.ipc import Stage
from antifreeze.plan import Lanes

if TYPE_CHECKING:
    from antifreeze.worker import TaskContext, UserError

_ROWS_AT_A_TIME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """What the user wants done with each row or batch. The random numbers that it sees are the caller's."""

    code: RowCode
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.code.is_empty and self.collate_fn is None

    def apply(self, given: RowBatch, context: TaskContext) -> Batch:
        """Return the batch as the user's functions make it; None if no row was left."""
        if self.code.whole is not None and self.collate_fn is None:
            made, context.num_samples = self._whole(given, context)
            return made
        rows = self.rows(given, context)
        context.num_samples = len(rows)
        return self._collated(self.collate_fn or given.delivery.collate, rows, context)

    def rows(self, given: RowBatch, context: TaskContext) -> list[Any]:
        """Return the rows of a batch as the user's functions make them."""
        if self.code.whole is None:
            return self._rows(given, context)
        made, num_rows = self._whole(given, context)
        if made is None:
            return []
        skip = () if self.code.makes_rows else given.skip
        with context.timed(Stage.TRANSFORM):
            left = range(_num_rows(made, num_rows))
            return [given.delivery.row(made, i) for i in context.samples(Stage.TRANSFORM, left, skip)]

    def _whole(self, given: RowBatch, context: TaskContext) -> tuple[Batch, int]:
        """Return what the function of whole batches makes of a batch, and how many rows that batch had."""
        whole = self.code.whole
        assert whole is not None  # noqa: S101
        batch, num_rows = given.batch, given.num_rows
        if self.code.makes_rows:
            rows = self._rows(given, context)
            batch, num_rows = self._collated(given.delivery.collate, rows, context), len(rows)
        if batch is None:
            return None, 0
        with context.timed(Stage.TRANSFORM):
            return whole.at(given.moment)(batch, -1), num_rows

    def _rows(self, given: RowBatch, context: TaskContext) -> list[Any]:
        from antifreeze.worker import UserError

        rows, make = [], self.code.maker.rows(given._replace(batch=given.delivery.parted(given.batch)))
        with context.timed(Stage.TRANSFORM):
            for i in context.samples(Stage.TRANSFORM, range(given.num_rows), given.skip):
                try:
                    rows.append(make(i))
                except UserError as error:
                    context.failed(error)
        return rows

    def _collated(self, collate: Callable[[list[Any]], Any], rows: list[Any], context: TaskContext) -> Batch:
        if not rows:
            return None
        with context.timed(Stage.COLLATE):
            return call(collate, rows, what="collate_fn", position=-1)


def inline_context() -> TaskContext:
    """Return a task context for functions that run in this thread, with random numbers that the caller has set."""
    from antifreeze.worker import TaskContext

    return TaskContext(None, slot=0, num_workers=1, on_error="raise", seed=lambda *_: None)


def row_location(name: Callable[[int], str], first: int, step: int, position: int) -> str:
    """Return where something failed, as text: at a row, or somewhere in a batch."""
    return name(first + position) if position >= 0 else f"batch {step}, whose first row is {name(first)}"


def error_of(caught: UserError, place: str, step: int) -> UserCodeError:
    """Return the error for what the user's function raised in this process; raise what was meant for the process."""
    from antifreeze.pool import mixed_error
    from antifreeze.worker import FailureReason

    original = caught.error
    if isinstance(original, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise original
    facts = {"step": step, "position": caught.position}
    if caught.reason is FailureReason.RETURNED_NONE:
        return UserCodeError(f"{caught.what} returned None", lines=[f"at {place}"], hint=str(original), **facts)
    problem = f"{caught.what} raised {type(original).__name__}: {caught.text}"
    hint = "the error above this one is the function's own, with its traceback"
    error = mixed_error(type(original))(problem, lines=[f"at {place}"], hint=hint, **facts)
    error.__cause__ = original
    return error


def _num_rows(batch: Batch, otherwise: int) -> int:
    """Return how many rows a transform of batches has left."""
    while isinstance(batch, dict) and batch:
        batch = next(iter(batch.values()))
    if hasattr(batch, "num_rows"):
        return int(batch.num_rows)
    return len(batch) if hasattr(batch, "__len__") else otherwise


def rows_of_epoch(dataset: RowDataset, source: RowSource, epoch: int) -> Iterator[Any]:
    """Yield the rows of an epoch, each through the transform."""
    from antifreeze.worker import UserError, seeded

    code, delivery, context, first = UserCode(code=dataset.row_code()), source.delivery, inline_context(), 0
    leaf = 0 if code.code.makes_rows else None
    reading = ReadRequest(Lanes(), source.shapes(1, None), dataset.shuffle, dataset.seed, epoch, 1, leaf)
    source.in_epoch(epoch)
    blocks = source.blocks(reading, 0, ReadOptions(memory_limit=parse_limit(None)))
    with contextlib.closing(blocks):
        for step, (block, start, stop) in enumerate(Rebatcher(iter(blocks), _ROWS_AT_A_TIME)):
            given = row_batch(delivery, block, start, stop, Moment(dataset.seed, epoch, first))
            try:
                with seeded(dataset.seed, epoch, step):
                    rows = code.rows(given, context)
            except UserError as caught:
                place = row_location(lambda i: source.sample_name(reading, i), first, step, caught.position)
                raise error_of(caught, place, step) from caught.error
            yield from rows
            first += stop - start
