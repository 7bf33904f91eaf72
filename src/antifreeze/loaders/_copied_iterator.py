"""What is left of a loader's iterator when it is copied or pickled: nothing but an error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from antifreeze.core import ConfigError


class CopiedIterator:
    """Takes the place of an epoch's iterator in a copy of whatever held it.

    Workers, threads and the place in the epoch belong to the iterator that was copied. Torch refuses to copy its own;
    frameworks know those by their class, and leave them out when they pickle what holds them.
    """

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        raise ConfigError(
            "an iterator over a loader cannot be copied or pickled, and this is what is left of one",
            hint="call iter(loader) on the copy; state_dict() of the loader says where the original is",
            argument="loader",
        )
