"""The user's functions: where they run, what they may do, and what is said when they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from antifreeze.api._delivery import Batch, Delivery
from antifreeze.core import UserCodeError
from antifreeze.loader import seeded

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCode:
    """What the user wants done with each row or batch, and the random numbers it sees."""

    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[list[Any]], Any] | None
    seed: int
    epoch: int
    name: Name

    def apply(self, delivery: Delivery, batch: Batch, step: int, first: int, num_rows: int) -> Batch:
        """Return the batch as the user's functions make it; ``first`` is the position of its first row."""
        with seeded(self.seed, self.epoch, step):
            if isinstance(self.transform, Batched) and self.collate_fn is None:
                return self._call(self.transform, batch, "transform", step, first, whole=True)
            rows = self.rows(delivery, batch, step, first, num_rows)
            return self._call(self.collate_fn or delivery.collate, rows, "collate_fn", step, first, whole=True)

    def rows(self, delivery: Delivery, batch: Batch, step: int, first: int, num_rows: int) -> list[Any]:
        """Return the rows of a batch as the transform makes them. The random numbers that it sees are the caller's."""
        if isinstance(self.transform, Batched):
            batch = self._call(self.transform, batch, "transform", step, first, whole=True)
            num_rows = _num_rows(batch, num_rows)
        rows: list[Any] = [delivery.row(batch, i) for i in range(num_rows)]
        if self.transform is None or isinstance(self.transform, Batched):
            return rows
        return [
            self._call(self.transform, row, "transform", step, first + i, whole=False) for i, row in enumerate(rows)
        ]

    def _call(
        self, function: Callable[[Any], Any], argument: Any, what: str, step: int, position: int, *, whole: bool
    ) -> Any:
        try:
            result = function(argument)
        # Border: user code may raise anything, and StopIteration among it would end the epoch in silence.
        except Exception as error:
            problem = f"{what} raised {type(error).__name__}: {_text(error)}"
            hint = "the error above this one is the function's own, with its traceback"
            raise self._error(problem, hint, step, position, whole) from error
        if result is None:
            hint = f"{what} must return something for every input; rows cannot be left out by returning None"
            raise self._error(f"{what} returned None", hint, step, position, whole)
        return result

    def _error(self, problem: str, hint: str, step: int, position: int, whole: bool) -> UserCodeError:
        row = self.name(position)
        where = f"batch {step}, whose first row is {row}" if whole else row
        return UserCodeError(f"{problem}\n  at {where}", hint=hint, step=step, position=position)


def _num_rows(batch: Batch, otherwise: int) -> int:
    """Return how many rows a transform of batches has left."""
    while isinstance(batch, dict) and batch:
        batch = next(iter(batch.values()))
    if hasattr(batch, "num_rows"):
        return int(batch.num_rows)
    return len(batch) if hasattr(batch, "__len__") else otherwise


def _text(error: Exception) -> str:
    """Return an error's message, even if it fails to print itself."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  border: the user's exception may do anything
        return "(its message cannot be printed)"
