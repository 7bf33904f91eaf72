"""Limits the memory that the open fragments of an epoch hold together.

A shuffled epoch has several fragments open at a time, and each holds a page and a dictionary of every column. How many
can be open was planned from footers, which do not give the size of a page. So the actual memory of a fragment is
counted when it is opened. If it does not fit, fragments that are not being read are closed. Their readers reopen them
and skip to where they were: slower, but the same rows.

Guarantees: nothing waits for the consumer or for another stream, so no order of events can deadlock. A thread waits
only while others are inside a decode, which ends. Open fragments never exceed the limit, except when a single fragment
does: it is opened anyway if nothing else is open.
"""

from __future__ import annotations

import threading
from typing import Protocol

_WAIT_INTERVAL_S = 0.05


class Evictable(Protocol):
    """Something that holds an open fragment."""

    def try_evict(self) -> bool:
        """Close the fragment unless it is being read; return True if it was closed."""
        ...


class OpenBudget:
    """Bytes that open fragments may hold. Used by all decoder threads of an epoch."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._changed = threading.Condition()
        self._held: dict[Evictable, int] = {}

    def reserve(self, reader: Evictable, nbytes: int) -> None:
        """Reserve memory for a fragment that a reader is about to open. The reader must hold nothing."""
        while others := self._try_reserve(reader, nbytes):
            # Order: outside of the lock, because evicting releases. The first opened has the least left to read.
            if not any(other.try_evict() for other in others):
                with self._changed:
                    self._changed.wait(_WAIT_INTERVAL_S)

    def _try_reserve(self, reader: Evictable, nbytes: int) -> list[Evictable]:
        """Reserve memory, or return the readers that hold it."""
        with self._changed:
            if self._held and sum(self._held.values()) + nbytes > self._limit:
                return list(self._held)
            self._held[reader] = nbytes
            return []

    def release(self, reader: Evictable) -> None:
        """Release the memory of a reader, if it reserved any."""
        with self._changed:
            if self._held.pop(reader, None) is not None:
                self._changed.notify_all()
