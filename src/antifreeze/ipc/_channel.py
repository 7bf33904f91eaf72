"""A socket between two processes: whole messages, in order, with descriptors."""

from __future__ import annotations

import array
import errno
import os
import pickle
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from antifreeze.core import Deadline

_HEADER = struct.Struct("<II")  # length of the body, number of descriptors
_CHUNK = 1 << 16
_FDS_NBYTES = socket.CMSG_SPACE(253 * 4)
_BUFFER = 1 << 20


class Closed(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return ends


class _End(socket.socket):
    """A socket that closes itself with its last reference, without a ``ResourceWarning``.

    Iterators are often still in use when the interpreter exits: after a ``break``, in an exception that is kept, in a
    notebook. Their channels end with them. Tried: ``Channel.__del__``. In a cycle Python may finalize the socket first.
    """

    def __del__(self, _close: Callable[[socket.SocketType], None] = socket.SocketType.close) -> None:
        _close(self)


class Channel:
    """Sends and receives messages without blocking; ``flush`` and ``receive`` add a deadline.

    Messages arrive whole or not at all: a message that a killed sender left half written is never seen. Used by one
    thread at a time.
    """

    def __init__(self, end: socket.socket) -> None:
        """Take over a socket; the given object is unusable afterwards."""
        self._socket = _End(fileno=end.detach())
        self._socket.setblocking(False)
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._received = bytearray()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._fds: deque[int] = deque()

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 when closed."""
        return self._socket.fileno()

    # -- out -------------------------------------------------------------------------------------------------------

    def send_nowait(self, message: object, fds: list[int] | None = None) -> None:
        """Send as much as the socket accepts, queue the rest. The descriptors are closed once they were sent."""
        body = pickle.dumps(message, protocol=5)
        frame = memoryview(_HEADER.pack(len(body), len(fds or [])) + body)
        self._unsent.append((frame, list(fds or [])))
        self.flush_nowait()

    def flush_nowait(self) -> bool:
        """Send queued data; return True if nothing is left."""
        while self._unsent:
            frame, fds = self._unsent[0]
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                count = self._socket.sendmsg([frame[:_CHUNK]], ancillary)
            except BlockingIOError:
                return False
            except OSError as error:
                self._drop_unsent()  # Order: no close here, so that what the other side had sent can still be received
                raise Closed from error
            for fd in fds:
                os.close(fd)
            if count == len(frame):
                self._unsent.popleft()
            else:
                self._unsent[0] = (frame[count:], [])
        return True

    def flush(self, deadline: Deadline) -> None:
        """Send all queued data, or raise ``TimeoutError`` at the deadline; it can be called again."""
        while not self.flush_nowait():
            self._wait(select.POLLOUT, deadline)

    # -- in --------------------------------------------------------------------------------------------------------

    def receive_nowait(self) -> list[tuple[Any, list[int]]]:
        """Return the messages that have arrived whole, each with its descriptors, which the caller closes.

        Raises ``Closed`` when the other side is gone and all its messages were returned.
        """
        ended = not self._fill()
        messages = []
        while (found := self._take()) is not None:
            messages.append(found)
        if ended and not messages:
            self.close()
            raise Closed
        return messages

    def receive(self, deadline: Deadline) -> list[tuple[Any, list[int]]]:
        """Return at least one message, or raise ``TimeoutError`` at the deadline."""
        while not (messages := self.receive_nowait()):
            self._wait(select.POLLIN, deadline)
        return messages

    def _fill(self) -> bool:
        """Read available data; return False at the end of the stream."""
        while True:
            try:
                # Into a reused buffer: allocating 64 KB each time would cost more than the message.
                count, ancillary, _, _ = self._socket.recvmsg_into([self._chunk], _FDS_NBYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return True
            except OSError:
                return False
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._fds.extend(array.array("i", data[: len(data) - len(data) % 4]))
            if not count:
                return False
            self._received += self._chunk[:count]
            if count < _CHUNK:
                return True

    def _take(self) -> tuple[Any, list[int]] | None:
        if len(self._received) < _HEADER.size:
            return None
        length, num_fds = _HEADER.unpack_from(self._received)
        end = _HEADER.size + length
        if len(self._received) < end:
            return None
        with memoryview(self._received) as received:
            message = pickle.loads(received[_HEADER.size : end])  # noqa: S301  from our own process
        del self._received[:end]
        if len(self._fds) < num_fds:  # the kernel drops descriptors beyond the limit of this process
            raise OSError(errno.EMFILE, "too many open files: cannot receive a descriptor")
        return message, [self._fds.popleft() for _ in range(num_fds)]

    def _wait(self, event: int, deadline: Deadline) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if not poll.poll(deadline.left_s * 1000) and deadline.passed:
            raise TimeoutError

    def close(self) -> None:
        """Close the socket and every descriptor in transit. May be called twice."""
        self._socket.close()
        while self._fds:
            os.close(self._fds.popleft())
        self._drop_unsent()

    def _drop_unsent(self) -> None:
        while self._unsent:
            for fd in self._unsent.popleft()[1]:
                os.close(fd)
