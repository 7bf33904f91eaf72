"""What each thread is doing, so that a stall can be named."""

from __future__ import annotations

import linecache
import sys
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Note:
    """One thread's record. Written by that thread alone; read by the consumer without a lock."""

    name: str
    thread_id: int = 0
    stage: str = "starting"
    file: str = ""
    row_group: int = -1
    row: int = 0
    moves: int = 0
    """Grows with every change, so that standing still can be told from doing the same thing again."""
    since_s: float = field(default_factory=time.monotonic)

    def at(self, stage: str, file: str = "", row_group: int = -1, row: int = 0) -> None:
        """Write down what begins now."""
        self.stage, self.file, self.row_group, self.row = stage, file, row_group, row
        self.moves += 1
        self.since_s = time.monotonic()


def describe(note: Note) -> str:
    """Return one line: which thread, what it does, for how long, and on which line of Python it stands."""
    where = f" {note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    frame = sys._current_frames().get(note.thread_id)
    line = ""
    if frame is not None:
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        line = f"; stands at {frame.f_code.co_filename}:{frame.f_lineno} {code}"
    return f"{note.name}: {note.stage}{where} for {time.monotonic() - note.since_s:.1f} s{line}"
