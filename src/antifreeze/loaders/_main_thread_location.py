"""Where the thread is that makes batches itself, seen from another thread: without workers, nothing else tells."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from antifreeze.diagnosis import Frame, user_frames
from antifreeze.distributed import Location


class MainThreadLocation:
    """The line of the user's code that the thread which made this is at, and since when it has been seen there."""

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        self._line, self._since_s = "", time.monotonic()

    def where(self) -> Location:
        """Return it. Seen repeatedly at the same line, it is taken to be waiting there."""
        frames: list[Frame] = []
        frame: FrameType | None = sys._current_frames().get(self._thread_id)
        while frame is not None:
            code = frame.f_code
            frames.append(Frame(file=code.co_filename, line=frame.f_lineno, function=code.co_name))
            frame = frame.f_back
        line = str(next(iter(user_frames(tuple(frames), most=1)), ""))
        if line != self._line:
            self._line, self._since_s = line, time.monotonic()
        return Location("training process", "", "a batch (num_workers=0)", time.monotonic() - self._since_s, line)
