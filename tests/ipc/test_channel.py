"""Whole messages, in order, each with its descriptors, however the bytes come; and nothing left open."""

from __future__ import annotations

import array
import contextlib
import gc
import os
import pickle
import signal
import socket
import struct
import threading
import time
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.core import Deadline
from antifreeze.ipc import Channel, Closed, pair

SOON_S = 30.0


def soon() -> Deadline:
    return Deadline.after(SOON_S)


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def channels() -> tuple[Channel, Channel]:
    ours, theirs = pair()
    return Channel(ours), Channel(theirs)


def pipe_with(text: bytes) -> int:
    """Return a descriptor from which a text can be read."""
    read, write = os.pipe()
    os.write(write, text)
    os.close(write)
    return read


def text_of(fd: int) -> bytes:
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


MESSAGES = st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 3)), max_size=8)


@settings(max_examples=60)
@given(MESSAGES)
def test_messages_arrive_whole_in_order_with_their_descriptors(sizes: list[tuple[int, int]]) -> None:
    """Of any length, more than the socket holds; the sender keeps the rest until there is room."""
    before = num_fds()
    one, two = channels()
    expected, found = [], []
    for number, (size, count) in enumerate(sizes):
        texts = [b"%d-%d" % (number, i) for i in range(count)]
        expected.append((number, size, texts))
        one.send_nowait((number, b"x" * size), [pipe_with(text) for text in texts])
        if number % 2:
            found += two.receive_nowait()
    while len(found) < len(expected):
        one.flush_nowait()
        found += two.receive_nowait()

    assert [(n, len(body), [text_of(fd) for fd in fds]) for (n, body), fds in found] == expected
    one.close()
    with pytest.raises(Closed):
        two.receive_nowait()
    assert num_fds() == before


@settings(max_examples=100)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.data())
def test_however_the_bytes_come_messages_are_whole(sizes: list[int], data: st.DataObject) -> None:
    """A socket may give one byte at a time. Descriptors come with the first byte of their message."""
    with contextlib.ExitStack() as stack:
        raw, theirs = pair()
        stack.callback(raw.close)
        channel = Channel(theirs)
        stack.callback(channel.close)
        found = in_pieces(raw, channel, sizes, data)

    assert [(n, len(text), text_of(fds[0])) for (n, text), fds in found] == [
        (number, size, b"%d" % number) for number, size in enumerate(sizes)
    ]


def in_pieces(raw: socket.socket, channel: Channel, sizes: list[int], data: st.DataObject) -> list[Any]:
    """Send messages in pieces of any size, and return what arrives."""
    found: list[Any] = []
    for number, size in enumerate(sizes):
        body = pickle.dumps((number, "y" * size))
        frame = struct.pack("<II", len(body), 1) + body
        fd: list[int] = [pipe_with(b"%d" % number)]
        while frame:
            count = data.draw(st.integers(1, len(frame)))
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fd))] if fd else []
            raw.sendmsg([frame[:count]], ancillary)
            frame = frame[count:]
            for one in fd:
                os.close(one)
            fd = []
            found += channel.receive_nowait()
    return found


@pytest.mark.parametrize("cut", [1, 4, 8, 9, 500])
def test_a_message_that_its_sender_could_not_finish_is_never_seen(cut: int) -> None:
    """What was whole before is; the descriptors of the half one are closed."""
    before = num_fds()
    raw, theirs = pair()
    channel = Channel(theirs)
    body = pickle.dumps("z" * 1000)
    whole = struct.pack("<II", len(body), 0) + body
    raw.sendall(whole)
    fd = pipe_with(b"")
    frame = struct.pack("<II", len(body), 1) + body
    raw.sendmsg([frame[:cut]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    os.close(fd)
    raw.close()

    messages = channel.receive_nowait()
    assert [message for message, _ in messages] == ["z" * 1000]
    with pytest.raises(Closed):  # noqa: PT012
        while True:
            assert channel.receive_nowait() == []
    assert num_fds() == before


def test_a_sender_that_is_killed_leaves_whole_messages_and_no_part_of_one() -> None:
    """At any instruction, many times."""
    for number in range(20):
        ours, theirs = pair()
        pid = os.fork()
        if not pid:
            ours.close()
            channel = Channel(theirs)
            for i in range(1 << 20):
                channel.send_nowait((i, b"x" * (i % 1000) * 50))
                channel.flush(soon())
            os._exit(0)
        theirs.close()
        channel, found = Channel(ours), []
        while len(found) < 5 + number:
            found += channel.receive(soon())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with pytest.raises(Closed):  # noqa: PT012
            while True:
                found += channel.receive(soon())

        assert [(i, len(body)) for (i, body), _ in found] == [(i, i % 1000 * 50) for i in range(len(found))]


def test_a_receiver_that_is_gone_is_noticed_and_descriptors_are_closed() -> None:
    """Those that wait to be sent, too."""
    before = num_fds()
    one, two = channels()
    for _ in range(30):
        one.send_nowait(b"x" * 300_000, [pipe_with(b"a")])
    two.close()
    with pytest.raises(Closed):
        one.flush(soon())
    with pytest.raises(Closed):
        one.send_nowait("more", [pipe_with(b"b")])

    one.close()
    assert one.fileno() == -1
    assert num_fds() == before


def test_what_one_that_is_gone_had_sent_arrives_also_after_a_send_that_failed() -> None:
    """A worker that dies while it is given more has sent batches that are not lost with it."""
    one, two = channels()
    one.send_nowait("a task that nobody takes")
    for number in range(3):
        two.send_nowait(number)
    two.close()
    with pytest.raises(Closed):
        one.send_nowait("more", [pipe_with(b"a")])

    assert [message for message, _ in one.receive_nowait()] == [0, 1, 2]
    with pytest.raises(Closed):
        one.receive_nowait()
    assert one.fileno() == -1


def test_descriptors_that_were_received_and_not_fetched_are_closed() -> None:
    """A worker that is given up may have sent something."""
    before = num_fds()
    one, two = channels()
    one.send_nowait("a", [pipe_with(b"a")])
    body = pickle.dumps("never whole")
    one._socket.sendmsg(
        [struct.pack("<II", len(body), 1)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0]))]
    )
    ((_, fds),) = two.receive_nowait()
    two.receive_nowait()
    os.close(fds[0])
    one.close()
    two.close()
    two.close()

    assert num_fds() == before


def test_waiting_ends_at_the_deadline() -> None:
    """To receive from one who says nothing, to send to one who does not read; and both can go on later."""
    one, two = channels()
    with pytest.raises(TimeoutError):
        one.receive(Deadline.after(0.01))
    one.send_nowait(b"x" * 20_000_000)
    with pytest.raises(TimeoutError):
        one.flush(Deadline.after(0.01))
    thread = threading.Thread(target=lambda: one.flush(soon()))
    thread.start()
    ((message, _),) = two.receive(soon())
    thread.join(SOON_S)

    assert len(message) == 20_000_000
    two.send_nowait("answer")
    assert one.receive(soon()) == [("answer", [])]
    one.close()
    two.close()


def test_a_message_wakes_the_one_who_waits() -> None:
    """Not a look at the clock."""
    one, two = channels()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(two.receive(soon())))
    thread.start()
    time.sleep(0.05)
    one.send_nowait("now")
    thread.join(SOON_S)

    assert found == [("now", [])]
    one.close()
    two.close()


def test_as_many_descriptors_as_the_kernel_takes_can_be_sent() -> None:
    """253 at a time."""
    before = num_fds()
    one, two = channels()
    one.send_nowait("many", [pipe_with(b"%d" % number) for number in range(253)])
    ((message, fds),) = two.receive(soon())

    assert message == "many"
    assert [text_of(fd) for fd in fds] == [b"%d" % number for number in range(253)]
    one.close()
    two.close()
    assert num_fds() == before


def test_a_channel_that_is_dropped_closes_its_socket_and_says_nothing() -> None:
    """Also as a part of a cycle, where the socket may be finalized before the channel."""
    before = num_fds()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(10):
            both = list(channels())
            cycle: list[Any] = [*both]
            cycle.append(cycle)
            del both, cycle
        gc.collect()

    assert [str(warning.message) for warning in warned] == []
    assert num_fds() == before
