"""Shared memory segments for batches: the sender writes, the receiver reads in place and returns them.

Problem. A batch must get from a worker to the trainer without a copy on the way, and either process may be killed at
any instruction. Queues serialize and copy; named shared memory has to be cleaned up by somebody.

Guarantees:

- A segment has one writer. It is written again only after the receiver has returned it and everything lent from it in
  the sender is gone. So neither a batch that the trainer keeps nor one that user code keeps can change.
- A killed process leaves nothing behind and nothing locked: segments are anonymous memory (memfd) and need no lock.
- The number of batches that a user keeps is not bounded by the limit on open files: a descriptor is sent once, mapped,
  and closed on both sides, and mapped memory needs no descriptor.
- Free memory is bounded: beyond a few free segments, surplus ones are dropped on both sides.

Assumptions. Messages arrive in order, so that the receiver maps a segment before it reads from it. NumPy views and
tensors made without a copy keep the leased array alive (see ``lease``).
"""

# Invariant: a segment is free if it is neither away (with the receiver) nor lent (referenced in the sender). Only a
# free segment is written or dropped.
# Order: descriptors of new segments go with the message that first uses them, and dropped numbers with the next one.
# Signal-safe: the receiver's memory is returned by a weak reference callback, which may run in any thread, at any
# instruction. It only changes a dict and a deque, atomically, and takes no lock.
# Known limitation: the kernel allows about 65,000 mappings. A user who keeps more than ``_MAX_LEASES`` batches gets
# copies.
# Rejected: named shared memory. /dev/shm is small in containers, names collide, and leftovers of a killed run block the
# next one.
# Rejected: a queue with a feeder thread. An object that cannot be pickled fails where nothing catches it, and a killed
# process leaves the queue's lock held.

from __future__ import annotations

import functools
import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from antifreeze.ipc._mapped_memory import Bytes, create, lease, map_bytes, rounded

_MAX_FREE = 8
_MAX_FREE_NBYTES = 64 << 20
_DROP_CHECK_INTERVAL = 8
_MAX_LEASES = 512
_ALIGN = 64  # a cache line


class Piece(NamedTuple):
    """A range of a segment."""

    segment: int
    start: int
    nbytes: int


class Opened(NamedTuple):
    """A segment that the receiver does not know yet. Its descriptor is sent with the message."""

    segment: int
    nbytes: int


@dataclass(slots=True, eq=False)
class _Segment:
    number: int
    memory: Bytes
    address: int
    nbytes: int
    away: bool = False
    """True while the receiver uses it."""
    lent: weakref.ref[Bytes] | None = None
    """The array lent from it in this process. A segment is free when it is neither away nor lent."""

    @property
    def is_lent(self) -> bool:
        return self.lent is not None and self.lent() is not None

    @property
    def free(self) -> bool:
        return not self.away and not self.is_lent


@dataclass(slots=True)
class SegmentUpdate:
    """Changes of segments that the receiver must apply before it can read a message."""

    opened: list[Opened] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


class Outbox:
    """The sender's segments. Used by one thread."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._next = self._messages = 0
        self._updates = SegmentUpdate()

    def lend(self, nbytes: int) -> Bytes:
        """Return memory that can be sent without a copy."""
        segment = self._fitting(nbytes) or self._fresh(nbytes)
        array = lease(segment.memory)
        segment.lent = weakref.ref(array)
        return array

    def find(self, raw: Bytes) -> Piece | None:
        """Return the location of these bytes, if they are in a lent segment that can be sent."""
        lent = [s for s in self._segments.values() if not s.away and s.is_lent]
        if lent:
            address, nbytes = raw.ctypes.data, len(raw)
            for segment in lent:
                start = address - segment.address
                if start >= 0 and start + nbytes <= segment.nbytes:
                    return Piece(segment.number, start, nbytes)
        return None

    def place(self, raws: list[Bytes]) -> list[Piece]:
        """Copy several byte arrays into one segment."""
        starts, end = [], 0
        for raw in raws:
            starts.append(end)
            end += -(-len(raw) // _ALIGN) * _ALIGN
        if not end:
            return [Piece(-1, 0, 0) for _ in raws]
        segment = self._fitting(end) or self._fresh(end)
        pieces = []
        for raw, start in zip(raws, starts, strict=True):
            segment.memory[start : start + len(raw)] = raw
            pieces.append(Piece(segment.number, start, len(raw)))
        return pieces

    def memory(self, piece: Piece) -> Bytes:
        """Return the bytes of a piece."""
        return self._segments[piece.segment].memory[piece.start : piece.start + piece.nbytes]

    def is_lent(self, piece: Piece) -> bool:
        """Return True if the segment of a piece is still referenced in this process."""
        return piece.segment >= 0 and self._segments[piece.segment].is_lent

    def sent(self, pieces: list[Piece]) -> None:
        """Record that the receiver now uses these."""
        for piece in pieces:
            if piece.segment >= 0:
                self._segments[piece.segment].away = True

    def returned(self, numbers: list[int]) -> None:
        """Record that the receiver has returned these."""
        for number in numbers:
            segment = self._segments.get(number)
            if segment is not None:
                segment.away = False

    def drain_updates(self) -> SegmentUpdate:
        """Return the segment changes for the next message; the caller closes the descriptors."""
        self._messages += 1
        if len(self._segments) > _MAX_FREE and (self._updates.opened or self._messages % _DROP_CHECK_INTERVAL == 0):
            self._drop_surplus()
        updates, self._updates = self._updates, SegmentUpdate()
        return updates

    def _fitting(self, nbytes: int) -> _Segment | None:
        # Best fit within twice the size plus 1 MB, so that a large segment is not used for a small batch. The search
        # stops at the first segment within a quarter of the size.
        best = None
        max_nbytes = 2 * nbytes + (1 << 20)
        for segment in self._segments.values():
            if nbytes <= segment.nbytes <= max_nbytes and segment.free:
                best, max_nbytes = segment, segment.nbytes
                if max_nbytes <= nbytes + (nbytes >> 2):
                    break
        return best

    def _fresh(self, nbytes: int) -> _Segment:
        size = rounded(nbytes)
        fd = create("antifreeze-batch", size)
        try:
            memory = map_bytes(fd, size)
        except BaseException:
            os.close(fd)
            raise
        segment = _Segment(self._next, memory, memory.ctypes.data, size)
        self._next += 1
        self._segments[segment.number] = segment
        self._updates.opened.append(Opened(segment.number, size))
        # The descriptor is closed once it was sent with the next message; the mapping outlives it.
        self._updates.fds.append(fd)
        return segment

    def _drop_surplus(self) -> None:
        """Drop surplus free segments: sizes change, and memory that fits no batch any more would be a leak."""
        # Order: segments that the receiver has not mapped yet are kept, or it would drop them before it opens them.
        unsent = {opened.segment for opened in self._updates.opened}
        free = [s for s in self._segments.values() if s.free and s.number not in unsent]
        nbytes = sum(s.nbytes for s in free)
        # The oldest are dropped first: the newest fit the current size of batches best.
        for segment in free[:-_MAX_FREE]:
            if nbytes > _MAX_FREE_NBYTES:
                nbytes -= segment.nbytes
                del self._segments[segment.number]
                self._updates.dropped.append(segment.number)


class Inbox:
    """The receiver's view of the sender's segments.

    Everything made from ``open`` without a copy keeps the segment alive; when the last reference is gone, in whichever
    thread, the segment's number is queued for ``take_done``, to be returned to the sender. No lock is taken.
    """

    def __init__(self) -> None:
        self._segments: dict[int, Bytes] = {}
        self._done: deque[int] = deque()
        self._leases: dict[int, weakref.ref[Bytes]] = {}

    def apply(self, opened: list[Opened], fds: list[int], dropped: list[int]) -> None:
        """Map new segments, forget dropped ones, close the descriptors."""
        for number in dropped:
            self._segments.pop(number, None)
        try:
            for segment, fd in zip(opened, fds, strict=True):
                self._segments[segment.segment] = map_bytes(fd, segment.nbytes)
        finally:
            for fd in fds:
                os.close(fd)

    def open(self, pieces: list[Piece]) -> list[Any]:
        """Return the bytes of the pieces of one message, writable and owned by the caller."""
        crowded = len(self._leases) >= _MAX_LEASES
        leased: dict[int, Bytes] = {-1: np.empty(0, np.uint8)}
        views = []
        for number, start, nbytes in pieces:
            array = leased.get(number)
            if array is None:
                array = leased[number] = lease(self._segments[number])
                give_back = functools.partial(_return, self._leases, self._done, number)
                self._leases[number] = weakref.ref(array, give_back)
            views.append(array[start : start + nbytes])
        # A user who keeps every batch would have a mapping for each, and the kernel allows about 65,000.
        return [np.array(view) for view in views] if crowded else views

    def release(self, pieces: list[Piece]) -> None:
        """Return the segments of a message that will never be opened."""
        self._done.extend({piece.segment for piece in pieces if piece.segment >= 0})

    def take_done(self) -> list[int]:
        """Return the numbers of segments that are no longer used in this process."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done


def _return(leases: dict[int, weakref.ref[Bytes]], done: deque[int], number: int, _: object) -> None:
    """Called with the last view of a segment. Does not reference the inbox, which may be gone by then."""
    leases.pop(number, None)
    done.append(number)
