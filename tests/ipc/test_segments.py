"""Memory that is used again: never while the receiver reads it, or while user code on the sender's side holds it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from antifreeze.ipc import Inbox, Outbox, Packed, Piece, dump, pack, unpack, unshare
from antifreeze.ipc import _segments as segments_module

SIZES = st.sampled_from([40_000, 40_001, 50_000, 100_000, 300_000])


class Traffic(RuleBasedStateMachine):
    """A sender, a receiver, and user code on both sides that keeps what it wants. Every array has its own value."""

    lent = Bundle("lent")
    on_its_way = Bundle("on_its_way")
    received = Bundle("received")

    def __init__(self) -> None:
        super().__init__()
        self.outbox, self.inbox = Outbox(), Inbox()
        self.value = 0
        self.held: list[tuple[Any, int]] = []
        """What somebody holds, on whichever side, and what must stand in it."""
        self.unopened: list[tuple[Packed, list[int]]] = []

    def fresh(self) -> int:
        self.value += 1
        return self.value % 251

    def _sent(self, values: list[Any]) -> tuple[Packed, list[int]]:
        expected = [int(value[0]) for value in values]
        head, raws = dump(values)
        values.clear()
        packed = pack(head, raws, self.outbox)
        raws.clear()
        packed = unshare(packed, self.outbox)
        self.outbox.sent(packed.pieces)
        news = self.outbox.drain_updates()
        self.inbox.apply(news.opened, news.fds, news.dropped)
        message = (packed, expected)
        self.unopened.append(message)
        return message

    @rule(target=on_its_way, sizes=st.lists(SIZES, min_size=1, max_size=3))
    def send_own(self, sizes: list[int]) -> Any:
        """Arrays of user code's own: they are copied."""
        return self._sent([np.full(size, self.fresh(), np.uint8) for size in sizes])

    @rule(target=lent, size=SIZES)
    def lend(self, size: int) -> Any:
        value = self.fresh()
        array = self.outbox.lend(size)[:size]
        array[...] = value
        self.held.append((array, value))
        return value

    @rule(target=on_its_way, value=lent, part=st.sampled_from([slice(None), slice(100), slice(5, 39_000)]))
    def send_lent(self, value: int, part: slice) -> Any:
        """Memory that was lent, and that user code holds also after it was sent."""
        array = next((a for a, v in self.held if v == value and a.base is not None and len(a)), None)
        if array is None or not self._is_lent(array):
            return multiple()
        return self._sent([array[part]])

    @rule(target=on_its_way, value=consumes(lent))
    def send_lent_and_let_go(self, value: int) -> Any:
        """As collating does: nobody else holds it."""
        array = next((a for a, v in self.held if v == value and self._is_lent(a)), None)
        if array is None:
            return multiple()
        self.held = [(a, v) for a, v in self.held if a is not array]
        values = [array]
        del array
        return self._sent(values)

    def _is_lent(self, array: Any) -> bool:
        return self.outbox.find(array) is not None

    @rule(
        target=received,
        message=consumes(on_its_way),
        part=st.sampled_from([slice(None), slice(3, 77), slice(-9, None)]),
    )
    def receive(self, message: Any, part: slice) -> Any:
        """Open a message, and keep a part of one of its arrays."""
        if message not in self.unopened:
            return multiple()
        self.unopened = [m for m in self.unopened if m is not message]
        arrays = unpack(message[0], self.inbox)
        assert [set(array.tolist()) for array in arrays] == [{value} for value in message[1]]
        kept = arrays[-1][part]
        self.held.append((kept, message[1][-1]))
        return len(self.held) - 1

    @rule(message=consumes(on_its_way))
    def discard(self, message: Any) -> None:
        """Nobody waits for this one any more."""
        if message in self.unopened:
            self.unopened = [m for m in self.unopened if m is not message]
            self.inbox.release(message[0].pieces)

    @rule(message=on_its_way)
    def receive_and_drop(self, message: Any) -> None:
        if message in self.unopened:
            self.unopened = [m for m in self.unopened if m is not message]
            unpack(message[0], self.inbox)

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        """What somebody holds is his own to change."""
        if self.held:
            number = data.draw(st.integers(0, len(self.held) - 1))
            array, value = self.held[number][0], self.fresh()
            array[...] = value
            self.held[number] = (array, value)

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.held:
            del self.held[data.draw(st.integers(0, len(self.held) - 1))]

    @rule()
    def tell(self) -> None:
        """The receiver says what it is done with."""
        self.outbox.returned(self.inbox.take_done())

    @invariant()
    def what_is_held_is_what_it_was(self) -> None:
        assert all((array == value).all() for array, value in self.held)

    def teardown(self) -> None:
        """When everything has been let go, all of it can be used again."""
        self.held.clear()
        for packed, _ in self.unopened:
            self.inbox.release(packed.pieces)
        self.tell()
        assert all(segment.free for segment in self.outbox._segments.values())


TestTraffic = Traffic.TestCase


def deliver(outbox: Outbox, inbox: Inbox, size: int) -> Any:
    pieces = outbox.place([np.full(size, 7, np.uint8)])
    outbox.sent(pieces)
    news = outbox.drain_updates()
    inbox.apply(news.opened, news.fds, news.dropped)
    return inbox.open(pieces)[0]


def mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("antifreeze-batch")


def test_the_same_memory_serves_batch_after_batch() -> None:
    """Fresh pages are what makes others slow."""
    outbox, inbox, before = Outbox(), Inbox(), mapped()
    for number in range(50):
        deliver(outbox, inbox, 100_000 + number)
        outbox.returned(inbox.take_done())

    assert mapped() == before + 2  # one segment, seen from both sides


def test_memory_that_fits_no_batch_any_more_is_let_go() -> None:
    """Sizes that only grow, or change from batch to batch, must not add up."""
    outbox, inbox = Outbox(), Inbox()
    for number in range(60):
        deliver(outbox, inbox, 1_000_000 * (1 + number))
        outbox.returned(inbox.take_done())
    nbytes = sum(segment.nbytes for segment in outbox._segments.values())

    # Those that are kept are the newest, and few.
    assert len(outbox._segments) <= segments_module._MAX_FREE + 60 * 64 // 100
    assert nbytes <= segments_module._MAX_FREE_NBYTES + segments_module._MAX_FREE * 2 * 60_000_000


def test_a_few_bytes_do_not_take_a_large_segment() -> None:
    """It would be away when the next large batch comes."""
    outbox, inbox = Outbox(), Inbox()
    deliver(outbox, inbox, 50_000_000)
    outbox.returned(inbox.take_done())
    deliver(outbox, inbox, 40_000)

    assert len(outbox._segments) == 2


def test_descriptors_are_closed_by_those_who_have_them() -> None:
    """The sender's when they were sent, the receiver's when they are mapped, both also if mapping fails."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    outbox, inbox = Outbox(), Inbox()
    kept = [deliver(outbox, inbox, 40_000) for _ in range(20)]

    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert len(kept) == 20


def test_nothing_is_sent_for_nothing() -> None:
    """A batch without large buffers opens no segment."""
    outbox = Outbox()

    assert outbox.place([]) == []
    assert outbox.place([np.empty(0, np.uint8)]) == [Piece(-1, 0, 0)]
    assert outbox.drain_updates().opened == []


def test_more_leases_than_the_kernel_allows_become_copies() -> None:
    """And those give their segment back at once."""
    outbox, inbox = Outbox(), Inbox()
    kept = [deliver(outbox, inbox, 40_000) for _ in range(segments_module._MAX_LEASES)]
    before = mapped()
    for _ in range(30):
        kept.append(deliver(outbox, inbox, 40_000))
        outbox.returned(inbox.take_done())

    assert mapped() <= before + 4
    assert all((array == 7).all() for array in kept)
