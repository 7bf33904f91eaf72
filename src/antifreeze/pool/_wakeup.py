"""Wakes a thread that waits in ``poll``."""

from __future__ import annotations

import contextlib
import os


class WakeupPipe:
    """A self-pipe. ``notify`` takes no lock and may be called from anywhere, the garbage collector included."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._in = self._out = -1
        if is_open:
            self.open()

    def open(self) -> None:
        """Create the pipe; without one, ``notify`` does nothing. May be called twice."""
        if self._in < 0:
            self._in, self._out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 when closed."""
        return self._in

    def notify(self) -> None:
        """Wake the waiting thread, or make its next wait return at once."""
        with contextlib.suppress(OSError):  # a full pipe wakes the thread as well; a closed one has no reader
            os.write(self._out, b"x")

    def drain(self) -> None:
        """Discard pending notifications, so that the next wait blocks."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._in, 4096)

    def close(self) -> None:
        """Close the pipe. May be called twice."""
        if self._in >= 0:
            os.close(self._in)
            os.close(self._out)
            self._in = self._out = -1
