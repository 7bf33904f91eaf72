"""The iterator over one epoch that a ``StreamingDataLoader`` gives."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from antifreeze.core import AntifreezeError
from antifreeze.datasets import Batch
from antifreeze.loaders._copied_iterator import CopiedIterator
from antifreeze.loaders._position import StreamPosition


class StreamingIterator:
    """Yields the batches of one epoch. Nothing is started or used up before the first is asked for.

    Who is interrupted, by Ctrl-C in a notebook say, and asks on, gets the batch after the last one: the epoch is begun
    again at that place, as a run is that was saved there. After an error of ours it is over.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._place: StreamPosition | None = None
        """After the last batch that was returned."""
        self._number = -1
        self._batches: Generator[tuple[StreamPosition, Batch], None, None] | None = None
        self._in_hand: tuple[StreamPosition, Batch] | None = None
        """A batch that has come and was not returned: an interrupt was faster."""
        self._is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedIterator, ()

    def __next__(self) -> Batch:
        if self._in_hand is None and not self._is_over:
            self._fetch()
        if self._in_hand is None:
            self._batches, self._is_over = None, True
            raise StopIteration
        place, batch = self._in_hand
        self._place = self._loader._place = place
        self._in_hand = None
        return batch

    def _fetch(self) -> None:
        try:
            if self._place is None:
                place = self._loader._begin()
                self._number, self._place = place.epoch, place
            if self._batches is None and self._place.epoch == self._number:
                self._batches = self._loader._batches(self._place)
            self._in_hand = next(self._batches, None) if self._batches is not None else None
        except BaseException as error:
            self._batches, self._is_over = None, isinstance(error, AntifreezeError)
            raise

    def close(self) -> None:
        """End the epoch here."""
        self._is_over, self._in_hand = True, None
        if self._batches is not None:
            self._batches.close()
