"""Where an epoch is that no worker process makes, for other ranks."""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType

from antifreeze.core import Location
from antifreeze.decode import Blocks
from antifreeze.diagnosis import Frame, History, user_frames
from antifreeze.distributed import RankStatus, Watched, watch_ranks


def watched(
    history: History, owner: MainThreadLocation | Blocks, epoch: int, stall_limit_s: float | None = None
) -> Watched:
    """Let other ranks see how an epoch goes, until the result is closed or the owner goes."""
    first = history.batches
    return watch_ranks(
        owner, lambda owner: RankStatus(epoch=epoch, place=owner.where(), **history.progress(first, stall_limit_s))
    )


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
