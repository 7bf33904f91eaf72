"""How much the open fragments of an epoch may hold together.

A shuffled epoch has several fragments open at a time, and each holds a page and a dictionary of every column. How many
can be open was planned from footers, which do not say how large a page is. So what a fragment really holds is counted
when it is opened. If there is no room for it, fragments that nobody reads at this moment are closed. Their readers open
them again and skip to where they were: slower, and the same rows.

Guarantees: nothing waits for the consumer or for another stream's turn, so no order of events can end in a deadlock. A
thread waits only while others are inside a decode, which ends by itself. What is open never exceeds the limit, except
by one fragment, which is opened in any case when nothing else is.
"""

from __future__ import annotations

import threading
from typing import Protocol

_WAIT_S = 0.05


class Evictable(Protocol):
    """Something that holds an open fragment."""

    def try_evict(self) -> bool:
        """Close the fragment unless it is being read at this moment. Return whether it was closed."""
        ...


class OpenBudget:
    """Bytes that open fragments may hold. Used by all decoder threads of an epoch."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._changed = threading.Condition()
        self._held: dict[Evictable, int] = {}

    def reserve(self, reader: Evictable, nbytes: int) -> None:
        """Make room for what a reader is about to open. The reader must hold nothing."""
        while others := self._try_reserve(reader, nbytes):
            # Order: outside of the lock, because evicting releases. Whoever was opened first has least left to read.
            if not any(other.try_evict() for other in others):
                with self._changed:
                    self._changed.wait(_WAIT_S)

    def _try_reserve(self, reader: Evictable, nbytes: int) -> list[Evictable]:
        """Reserve, or return who holds what is missing."""
        with self._changed:
            if self._held and sum(self._held.values()) + nbytes > self._limit:
                return list(self._held)
            self._held[reader] = nbytes
            return []

    def release(self, reader: Evictable) -> None:
        """Give back what a reader had reserved, if it had."""
        with self._changed:
            if self._held.pop(reader, None) is not None:
                self._changed.notify_all()
