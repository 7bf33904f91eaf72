"""The user's functions: what they are called with, and what is raised when they fail.

What belongs to worker processes is imported where user code runs: reading without user code needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from antifreeze.core import UserCodeError
from antifreeze.datasets._delivery import Batch, Delivery
from antifreeze.datasets._row_code import Moment, RowCode, call
from antifreeze.ipc import Stage

if TYPE_CHECKING:
    from antifreeze.worker import TaskContext, UserError

Name = Callable[[int], str]
"""Position in the epoch -> file and row, as text."""


class RowBatch(NamedTuple):
    """Rows that the user's functions are called with."""

    delivery: Delivery
    batch: Batch
    num_rows: int
    moment: Moment
    skip: tuple[int, ...] = ()
    """Positions of rows that are left out."""


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

        delivery = given.delivery
        rows, make = [], self.code.maker.rows(delivery, delivery.parted(given.batch), given.moment)
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


def row_location(name: Name, first: int, step: int, position: int) -> str:
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
