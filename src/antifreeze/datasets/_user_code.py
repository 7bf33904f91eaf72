"""What user code makes of rows: a tree that mirrors how datasets are made of others, and travels to workers.

What belongs to worker processes is imported where user code runs: reading without user code needs none of it.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from antifreeze.core import ConfigError, UserCodeError
from antifreeze.datasets._delivery import Batch, Delivery, leaf_and_row
from antifreeze.datasets._transforms import Moment, Transform, call
from antifreeze.ipc import Stage

if TYPE_CHECKING:
    from antifreeze.worker import TaskContext, UserError


class RowBatch(NamedTuple):
    """Rows that the user's functions are called with."""

    delivery: Delivery
    batch: Batch
    tracks: Any
    """Which rows they are, if functions are called with single rows; else None."""
    num_rows: int
    moment: Moment
    skip: tuple[int, ...] = ()
    """Positions of rows that are left out."""


def row_batch(
    delivery: Delivery, block: Any, start: int, stop: int, moment: Moment, skip: tuple[int, ...] = ()
) -> RowBatch:
    """Return some rows of a block for the user's functions."""
    batch, tracks = delivery.batch(block, start, stop), delivery.tracks(block, start, stop)
    return RowBatch(delivery, batch, tracks, stop - start, moment, skip)


class Maker(Protocol):
    """Makes one row of a batch."""

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        """Return a function that makes a row of a batch, by its position, as the user's code does.

        That function raises ``UserError``. It is called for every row, so what is the same for a batch is done before.
        """
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """Rows as they were read."""

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        return partial(given.delivery.row, given.batch)


@dataclass(frozen=True, slots=True)
class Transformed:
    """Rows after a transform."""

    inner: Maker
    transform: Transform

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        inner, transform = self.inner.rows(given), self.transform.at(given.moment)
        return lambda i: transform(inner(i), i)


_at_hand = threading.local()
"""The row that a loader asks ``__getitem__`` of a subclass for: it was read already."""


def row_at_hand(dataset: object, number: int) -> Callable[[], Any] | None:
    """Return what makes a row of a dataset, if ``Asked`` has just asked the dataset for it."""
    owner, wanted, make = getattr(_at_hand, "row", (None, -1, None))
    return make if owner is dataset and wanted == number else None


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows that ``__getitem__`` of the user's class gives. The row that it asks its base class for is at hand."""

    dataset: Any

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        source = self.dataset.row_source
        source.in_epoch(given.moment.epoch)

        def row(i: int) -> Any:
            number = source.number_of(leaf_and_row(given.tracks, i)[1])
            read = partial(given.delivery.row, given.batch, i)
            return call(self._ask, number, read, what=f"dataset[{number}]", position=i)

        return row

    def _ask(self, number: int, make: Callable[[], Any]) -> Any:
        before = getattr(_at_hand, "row", (None, -1, None))
        _at_hand.row = (self.dataset, number, make)
        try:
            return self.dataset[number]
        finally:
            _at_hand.row = before


@dataclass(frozen=True, slots=True)
class OneOf:
    """Rows of datasets that are mixed: each as its own dataset makes it."""

    makers: tuple[Maker, ...]
    first_leaves: tuple[int, ...]

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        rows = [maker.rows(given) for maker in self.makers]
        firsts, tracks = self.first_leaves, given.tracks
        return lambda i: rows[bisect.bisect_right(firsts, leaf_and_row(tracks, i)[0]) - 1](i)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A tuple of a row of each dataset."""

    makers: tuple[Maker, ...]

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        parts = zip(self.makers, given.delivery.parts, given.batch, given.tracks, strict=True)
        rows = [maker.rows(given._replace(delivery=d, batch=b, tracks=t)) for maker, d, b, t in parts]
        return lambda i: tuple(row(i) for row in rows)


@dataclass(frozen=True, slots=True)
class UserCode:
    """All that user code does with rows: first one by one, then with the whole batch.

    The random numbers that it sees are the caller's.
    """

    maker: Maker = Raw()
    whole: Transform | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def makes_rows(self) -> bool:
        """Whether anything is done with single rows: then they are read with tracks."""
        return not isinstance(self.maker, Raw)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.whole is None and self.collate_fn is None and not self.makes_rows

    def then(self, transform: Transform | None, what: str) -> UserCode:
        """Return this with another transform after it; ``what`` is the dataset that has it."""
        if transform is None:
            return self
        if self.whole is not None:
            raise ConfigError(
                f"{what} and the datasets in it both have a transform, and theirs takes whole batches",
                hint=f"make one function of them, and give it to {what}(..., transform=...)",
                argument="transform",
            )
        if transform.is_whole:
            return UserCode(self.maker, transform)
        return UserCode(Transformed(self.maker, transform))

    def apply(self, given: RowBatch, context: TaskContext) -> Batch:
        """Return the batch as the user's functions make it; None if no row was left."""
        if self.whole is not None and self.collate_fn is None:
            made, context.num_samples = self._whole(given, context)
            return made
        rows = self.rows(given, context)
        context.num_samples = len(rows)
        return self._collated(self.collate_fn or given.delivery.collate, rows, context)

    def rows(self, given: RowBatch, context: TaskContext) -> list[Any]:
        """Return the rows of a batch as the user's functions make them."""
        if self.whole is None:
            return self._rows(given, context)
        made, num_rows = self._whole(given, context)
        if made is None:
            return []
        skip = () if self.makes_rows else given.skip
        with context.timed(Stage.TRANSFORM):
            left = range(_num_rows(made, num_rows))
            return [given.delivery.row(made, i) for i in context.samples(Stage.TRANSFORM, left, skip)]

    def _whole(self, given: RowBatch, context: TaskContext) -> tuple[Batch, int]:
        """Return what the function of whole batches makes of a batch, and how many rows that batch had."""
        whole = self.whole
        assert whole is not None  # noqa: S101
        batch, num_rows = given.batch, given.num_rows
        if self.makes_rows:
            rows = self._rows(given, context)
            batch, num_rows = self._collated(given.delivery.collate, rows, context), len(rows)
        if batch is None:
            return None, 0
        with context.timed(Stage.TRANSFORM):
            return whole.at(given.moment)(batch, -1), num_rows

    def _rows(self, given: RowBatch, context: TaskContext) -> list[Any]:
        from antifreeze.worker import UserError

        rows, make = [], self.maker.rows(given._replace(batch=given.delivery.parted(given.batch)))
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


def mixed_code(codes: Sequence[UserCode], first_leaves: Sequence[int]) -> UserCode:
    """Return what is done with the rows of datasets that are mixed."""
    if all(_does_the_same(codes[0], code) for code in codes[1:]):
        return codes[0]
    _refuse_whole(codes, "CombinedStreamingDataset", "a column can tell it which dataset a row is of")
    return UserCode(OneOf(tuple(code.maker for code in codes), tuple(first_leaves)))


def paired_code(codes: Sequence[UserCode]) -> UserCode:
    """Return what is done with the rows of datasets side by side."""
    _refuse_whole(codes, "ParallelStreamingDataset", "it is called with a tuple of batches")
    if all(code.is_empty for code in codes):
        return UserCode()
    return UserCode(SideBySide(tuple(code.maker for code in codes)))


def _refuse_whole(codes: Sequence[UserCode], what: str, more: str) -> None:
    for number, code in enumerate(codes):
        if code.whole is not None:
            raise ConfigError(
                f"dataset {number} of a {what} has a transform of whole batches, which are made of several datasets",
                hint=f"give it to {what}(..., transform=...); {more}",
                argument="transform",
            )


def _does_the_same(one: UserCode, two: UserCode) -> bool:
    if one.whole is not None and two.whole is not None:
        is_same = one.whole.is_same(two.whole)
    else:
        is_same = one.whole is two.whole
    mine, theirs = one.maker, two.maker
    if isinstance(mine, Transformed) and isinstance(theirs, Transformed):
        is_plain = isinstance(mine.inner, Raw) and isinstance(theirs.inner, Raw)
        return is_same and is_plain and mine.transform.is_same(theirs.transform)
    return is_same and isinstance(mine, Raw) and isinstance(theirs, Raw)


def inline_context() -> TaskContext:
    """Return a task context for functions that run in this thread, with random numbers that the caller has set."""
    from antifreeze.worker import TaskContext

    return TaskContext(None, slot=0, num_workers=1, on_error="raise")


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
