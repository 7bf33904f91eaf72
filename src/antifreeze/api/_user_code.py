"""The user's functions: what they are called with, and what is raised when they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antifreeze.api._delivery import Batch, Delivery
from antifreeze.child import Desk, Stage, UserError
from antifreeze.core import UserCodeError
from antifreeze.crew import mixed_error

Name = Callable[[int], str]
"""Position in the epoch -> the file and row that stand there, in words."""


@dataclass(frozen=True, slots=True)
class Batched:
    """A function of a whole batch; see ``batched``."""

    function: Callable[[Any], Any]

    def __call__(self, batch: Any) -> Any:
        return self.function(batch)


def batched(function: Callable[[Any], Any]) -> Batched:
    """Mark a transform as one that takes a whole batch instead of one row. Can be used as a decorator."""
    return Batched(function)


class ReturnedNone(TypeError):
    """A function returned None."""

    def __init__(self) -> None:
        super().__init__("it must return something for every input; rows cannot be left out by returning None")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """What the user wants done with each row or batch. The random numbers that it sees are the caller's."""

    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[list[Any]], Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.transform is None and self.collate_fn is None

    def apply(self, delivery: Delivery, batch: Batch, num_rows: int, desk: Desk, skip: tuple[int, ...] = ()) -> Batch:
        """Return the batch as the user's functions make it; None if no row was left."""
        if isinstance(self.transform, Batched) and self.collate_fn is None:
            desk.num_samples = num_rows
            with desk.timed(Stage.TRANSFORM):
                return _call(self.transform, batch, "transform", -1)
        rows = self.rows(delivery, batch, num_rows, desk, skip)
        desk.num_samples = len(rows)
        if not rows:
            return None
        with desk.timed(Stage.COLLATE):
            return _call(self.collate_fn or delivery.collate, rows, "collate_fn", -1)

    def rows(
        self, delivery: Delivery, batch: Batch, num_rows: int, desk: Desk, skip: tuple[int, ...] = ()
    ) -> list[Any]:
        """Return the rows of a batch as the transform makes them."""
        with desk.timed(Stage.TRANSFORM):
            if isinstance(self.transform, Batched):
                batch = _call(self.transform, batch, "transform", -1)
                num_rows = _num_rows(batch, num_rows)
            rows = []
            for i in desk.samples(Stage.TRANSFORM, range(num_rows), skip):
                row: Any = delivery.row(batch, i)
                if self.transform is not None and not isinstance(self.transform, Batched):
                    try:
                        row = _call(self.transform, row, "transform", i)
                    except UserError as error:
                        desk.failed(error)
                        continue
                rows.append(row)
            return rows


def _call(function: Callable[[Any], Any], argument: Any, what: str, position: int) -> Any:
    try:
        result = function(argument)
    # Border: user code may raise anything, and StopIteration among it would end the epoch in silence.
    except BaseException as error:
        raise UserError(what, error, position=position, can_skip=position >= 0) from error
    if result is None:
        raise UserError(what, ReturnedNone(), position=position, can_skip=position >= 0)
    return result


def inline_desk() -> Desk:
    """Return a desk for functions that run in this thread, with random numbers that the caller has set."""
    return Desk(None, slot=0, num_workers=1, on_error="raise", seed=lambda *_: None)


def place_of(name: Name, first: int, step: int, position: int) -> str:
    """Return in words where something failed: at a row, or somewhere in a batch."""
    return name(first + position) if position >= 0 else f"batch {step}, whose first row is {name(first)}"


def error_of(caught: UserError, place: str, step: int) -> UserCodeError:
    """Return the error for what the user's function raised in this process; raise what was meant for the process."""
    original = caught.error
    if isinstance(original, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise original
    facts = {"step": step, "position": caught.position}
    if isinstance(original, ReturnedNone):
        return UserCodeError(f"{caught.what} returned None\n  at {place}", hint=str(original), **facts)
    problem = f"{caught.what} raised {type(original).__name__}: {caught.text}"
    hint = "the error above this one is the function's own, with its traceback"
    error = mixed_error(type(original))(f"{problem}\n  at {place}", hint=hint, **facts)
    error.__cause__ = original
    return error


def _num_rows(batch: Batch, otherwise: int) -> int:
    """Return how many rows a transform of batches has left."""
    while isinstance(batch, dict) and batch:
        batch = next(iter(batch.values()))
    if hasattr(batch, "num_rows"):
        return int(batch.num_rows)
    return len(batch) if hasattr(batch, "__len__") else otherwise
