"""The user's functions: where they run, what they may do, and what is said when they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antifreeze.api._delivery import Batch, Delivery
from antifreeze.core import ConfigError, UserCodeError
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


def check_callable(name: str, value: object) -> None:
    """Raise unless the value is a function or None."""
    if value is not None and not callable(value):
        raise ConfigError(
            f"{name}={value!r} is a {type(value).__name__}, not a function", hint=f"pass {name}=None", argument=name
        )


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
        by_row = self.transform is not None and not isinstance(self.transform, Batched)
        with seeded(self.seed, self.epoch, step):
            if isinstance(self.transform, Batched):
                batch = self._call(self.transform, batch, "transform", step, first)
            if not by_row and self.collate_fn is None:
                return batch
            rows = self.rows(delivery, batch, step, first, num_rows)
            return self._call(self.collate_fn or delivery.collate, rows, "collate_fn", step, first)

    def rows(self, delivery: Delivery, batch: Batch, step: int, first: int, num_rows: int) -> list[Any]:
        """Return the rows of a batch, each through the transform if it is one of rows."""
        rows: list[Any] = [delivery.row(batch, i) for i in range(num_rows)]
        if self.transform is None or isinstance(self.transform, Batched):
            return rows
        return [self._call(self.transform, row, "transform", step, first + i) for i, row in enumerate(rows)]

    def _call(self, function: Callable[[Any], Any], argument: Any, what: str, step: int, position: int) -> Any:
        whole = isinstance(argument, (list, Sequence)) or isinstance(function, Batched)
        where = f"batch {step}, whose first row is {self.name(position)}" if whole else self.name(position)
        try:
            result = function(argument)
        # Border: user code may raise anything, and StopIteration among it would end the epoch in silence.
        except Exception as error:
            raise UserCodeError(
                f"{what} raised {type(error).__name__}: {error}\n  at {where}",
                hint="the error above this one is the function's own, with its traceback",
                step=step,
                position=position,
            ) from error
        if result is None:
            raise UserCodeError(
                f"{what} returned None\n  at {where}",
                hint=f"{what} must return something for every input; rows cannot be left out by returning None",
                step=step,
                position=position,
            )
        return result
