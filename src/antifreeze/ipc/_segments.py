"""Memory that batches travel in: the sender writes, the receiver reads in place and says when it is done."""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from antifreeze.ipc._anonymous_memory import Bytes, create, lease, map_bytes, rounded

_MOST_FREE = 8
_MOST_FREE_NBYTES = 64 << 20
_LOOK_EVERY = 8
_MOST_LEASES = 512
_ALIGN = 64


class Piece(NamedTuple):
    """A stretch of a segment."""

    segment: int
    start: int
    nbytes: int


class Opened(NamedTuple):
    """A segment that the receiver does not know yet. Its descriptor travels beside the message."""

    segment: int
    nbytes: int


@dataclass(slots=True, eq=False)
class _Segment:
    number: int
    memory: Bytes
    address: int
    nbytes: int
    away: bool = False
    """With the receiver."""
    lent: weakref.ref[Bytes] | None = None
    """What stands in it here. A segment is free when it is neither away nor lent."""

    @property
    def is_lent(self) -> bool:
        return self.lent is not None and self.lent() is not None

    @property
    def free(self) -> bool:
        return not self.away and not self.is_lent


@dataclass(slots=True)
class SegmentUpdate:
    """What a message must tell the receiver about segments before it can be read."""

    opened: list[Opened] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)


class Outbox:
    """The sender's segments. Used by one thread.

    Guarantees: a segment is written again only after the receiver has said that it is done with it and everything that
    was lent from it here is gone; so neither a batch that the trainer keeps nor one that user code keeps can change.
    """

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._next = self._messages = 0
        self._news = SegmentUpdate()

    def lend(self, nbytes: int) -> Bytes:
        """Return memory that can be sent without a copy."""
        segment = self._fitting(nbytes) or self._fresh(nbytes)
        array = lease(segment.memory)
        segment.lent = weakref.ref(array)
        return array

    def find(self, raw: Bytes) -> Piece | None:
        """Return where in a segment these bytes stand, if they stand in one that was lent and can be sent."""
        lent = [s for s in self._segments.values() if not s.away and s.is_lent]
        if lent:
            address, nbytes = raw.ctypes.data, len(raw)
            for segment in lent:
                start = address - segment.address
                if start >= 0 and start + nbytes <= segment.nbytes:
                    return Piece(segment.number, start, nbytes)
        return None

    def place(self, raws: list[Bytes]) -> list[Piece]:
        """Copy bytes, one after the other, into one segment."""
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
        """Tell whether something here still stands in a piece's segment."""
        return piece.segment >= 0 and self._segments[piece.segment].is_lent

    def sent(self, pieces: list[Piece]) -> None:
        """Note that these are with the receiver now."""
        for piece in pieces:
            if piece.segment >= 0:
                self._segments[piece.segment].away = True

    def returned(self, numbers: list[int]) -> None:
        """Note that the receiver is done with these."""
        for number in numbers:
            segment = self._segments.get(number)
            if segment is not None:
                segment.away = False

    def drain_updates(self) -> SegmentUpdate:
        """Return what the receiver must hear with the next message; the caller closes the descriptors."""
        self._messages += 1
        if len(self._segments) > _MOST_FREE and (self._news.opened or self._messages % _LOOK_EVERY == 0):
            self._drop_surplus()
        news, self._news = self._news, SegmentUpdate()
        return news

    def _fitting(self, nbytes: int) -> _Segment | None:
        best = None
        most = 2 * nbytes + (1 << 20)
        for segment in self._segments.values():
            if nbytes <= segment.nbytes <= most and segment.free:
                best, most = segment, segment.nbytes
                if most <= nbytes + (nbytes >> 2):
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
        self._news.opened.append(Opened(segment.number, size))
        self._news.fds.append(fd)
        return segment

    def _drop_surplus(self) -> None:
        """Let go of free segments beyond a few: sizes change, and memory that fits no batch any more is a leak."""
        unsent = {opened.segment for opened in self._news.opened}
        free = [s for s in self._segments.values() if s.free and s.number not in unsent]
        nbytes = sum(s.nbytes for s in free)
        for segment in free[:-_MOST_FREE]:
            if nbytes > _MOST_FREE_NBYTES:
                nbytes -= segment.nbytes
                del self._segments[segment.number]
                self._news.dropped.append(segment.number)


class Inbox:
    """The receiver's view of the sender's segments.

    Whatever is made from ``open`` without a copy keeps the segment; when the last of it dies, in whichever thread the
    collector runs, the segment's number waits in ``take_done`` to be told to the sender. No lock is taken.
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
        crowded = len(self._leases) >= _MOST_LEASES
        leased: dict[int, Bytes] = {-1: np.empty(0, np.uint8)}
        views = []
        for number, start, nbytes in pieces:
            array = leased.get(number)
            if array is None:
                array = leased[number] = lease(self._segments[number])
                self._leases[number] = weakref.ref(array, _Return(self._leases, self._done, number))
            views.append(array[start : start + nbytes])
        # Who keeps every batch would have a mapping for each, and the kernel allows some 65,000 of them.
        return [np.array(view) for view in views] if crowded else views

    def release(self, pieces: list[Piece]) -> None:
        """Give back the segments of a message that will never be opened."""
        self._done.extend({piece.segment for piece in pieces if piece.segment >= 0})

    def take_done(self) -> list[int]:
        """Return the numbers of segments that nobody here uses any more."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        return done


class _Return:
    """What is done when the last view of a segment dies. Holds no inbox: that one may be gone by then."""

    __slots__ = ("_done", "_leases", "_number")

    def __init__(self, leases: dict[int, weakref.ref[Bytes]], done: deque[int], number: int) -> None:
        self._leases, self._done, self._number = leases, done, number

    def __call__(self, _: object) -> None:
        self._leases.pop(self._number, None)
        self._done.append(self._number)
