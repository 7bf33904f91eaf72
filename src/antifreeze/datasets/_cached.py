"""What a dataset makes or notes while it is read. It stays behind when the dataset is pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Made:
    """What can be made again, and the epoch that is read.

    Not attributes of the dataset, for two reasons: a ``__getstate__`` of a subclass may take all of these along, and
    workers of a later epoch come from the same template process only if the dataset's pickle has not changed.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.epoch = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Made, ()


def made_once(make: Callable[[Any], T]) -> T:
    """Return a property that is made when it is first asked for, and kept in ``_made`` of its object."""
    name = make.__name__

    def get(owner: Any) -> Any:
        values = owner._made.values
        if name not in values:
            values[name] = make(owner)
        return values[name]

    return property(get)  # type: ignore[return-value]  # for type checkers it is what it gives
