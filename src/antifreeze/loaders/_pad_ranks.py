"""Ranks whose iterable datasets have different lengths, made even: a collective must not wait for one that has ended.

Each rank says through the job's store how many batches it has. One whose data ends first repeats it until the longest
rank has ended. Nothing here is a collective, and no call waits for a key that is not there.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.core import InputError, get_logger

logger = get_logger()

_POLL_INTERVAL_S = 0.02
_SILENT_S = 60.0
_BEGIN_S = 5.0
_SAID = re.compile(rb"(has|ended) ([0-9]{1,15})")
_numbers = itertools.count()


def next_number() -> int:
    """Return a number for a loader: the same on every rank, for ranks run the same script."""
    return next(_numbers)


class PaddedRanks:
    """The batches of one epoch on one rank, and more of them while other ranks have more."""

    def __init__(
        self,
        batches: Iterator[Any],
        again: Callable[[], Iterator[Any]],
        key: str,
        distributed: Any,
        *,
        count: int = 0,
        own: int | None = None,
    ) -> None:
        self._batches, self._again = batches, again
        self._key, self._distributed = key, distributed
        self._store: Any = None
        self.count = self._told = count
        """How many batches were given."""
        self.own = own
        """How many batches this rank has, once that is known."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._store is None:
            self._tell(f"has {self.count}" if self.own is None else f"ended {self.own}")
        if self.own is None:
            try:
                batch = next(self._batches)
            except StopIteration:
                self.own = self.count
                self._tell(f"ended {self.own}")
            else:
                self.count += 1
                if self.count > self._told:
                    self._told = self.count + int(getattr(self._batches, "num_ready", 0))
                    self._tell(f"has {self._told}")
                return batch
        if not self._someone_has_more():
            raise StopIteration
        self.count += 1
        return self._padding()

    def _padding(self) -> Any:
        if self.count == (self.own or 0) + 1:
            logger.warning(
                "antifreeze: rank %d has no more data after %d batches, other ranks have (uneven ranks); it repeats "
                'its own, so that no collective waits for it. uneven_ranks="ignore" turns this off',
                self._distributed.get_rank(),
                self.own,
            )
        for _ in range(2):
            try:
                return next(self._batches)
            except StopIteration:
                self._batches = self._again()
        rank = self._distributed.get_rank()
        raise InputError(
            f"ranks have a different number of batches: rank {rank} has none at all, others have",
            hint="give every rank a part of the data, or use fewer ranks",
        )

    def end_workers(self) -> None:
        """End the workers of the runner, if it has any."""
        if hasattr(self._batches, "end_workers"):
            self._batches.end_workers()

    def close(self) -> None:
        """End the runner."""
        closing: Any = self._batches
        closing.close()

    # -- the store -------------------------------------------------------------------------------------------------

    def _tell(self, what: str) -> None:
        if self._store is None:
            self._store = self._distributed.distributed_c10d._get_default_store()
        self._store.set(f"{self._key}/{self._distributed.get_rank()}", what)

    def _someone_has_more(self) -> bool:
        """True if another rank has a batch beyond those that were given here. Waits until that is known."""
        heard: list[tuple[str, int]] = []
        since_s = time.monotonic()
        while True:
            before, heard = heard, self._heard()
            if len(heard) < self._distributed.get_world_size() - 1 and time.monotonic() - since_s < _BEGIN_S:
                time.sleep(_POLL_INTERVAL_S)  # it may be about to begin
                continue
            if any(count > self.count for _, count in heard):
                return True
            if all(state == "ended" for state, _ in heard):
                return False
            if heard != before:
                since_s = time.monotonic()
            elif time.monotonic() - since_s > _SILENT_S:
                logger.warning("antifreeze: another rank has not asked for a batch for %d s; this one ends", _SILENT_S)
                return False
            time.sleep(_POLL_INTERVAL_S)

    def _heard(self) -> list[tuple[str, int]]:
        """Return what the other ranks have said; those that have said nothing, or nonsense, do not take part."""
        ranks = [r for r in range(self._distributed.get_world_size()) if r != self._distributed.get_rank()]
        keys = [f"{self._key}/{rank}" for rank in ranks]
        said = [_SAID.fullmatch(self._store.get(key)) for key in keys if self._store.check([key])]
        return [(found[1].decode(), int(found[2])) for found in said if found is not None]


def take_part(distributed: Any) -> bool:
    """True if this process is one of several ranks."""
    return bool(distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)
