"""What wakes a thread that waits in ``poll``."""

from __future__ import annotations

import contextlib
import os


class WakeupPipe:
    """A pipe to oneself. Ringing takes no lock, and may be done anywhere: by the collector, too."""

    def __init__(self, *, is_open: bool = True) -> None:
        self._in = self._out = -1
        if is_open:
            self.open()

    def open(self) -> None:
        """Have a pipe; without one, ringing does nothing. May be called twice."""
        if self._in < 0:
            self._in, self._out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 when closed."""
        return self._in

    def notify(self) -> None:
        """Wake whoever waits, now or the next time."""
        with contextlib.suppress(OSError):  # it is full, which wakes as well, or closed
            os.write(self._out, b"x")

    def drain(self) -> None:
        """Have the next wait be one."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._in, 4096)

    def close(self) -> None:
        """Let go of the pipe. May be called twice."""
        if self._in >= 0:
            os.close(self._in)
            os.close(self._out)
            self._in = self._out = -1
