"""What each thread is doing, so that a stall can be named."""

from __future__ import annotations

import linecache
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from antifreeze.ranks import Place

_WAITS = ("wait for room", "done")


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


def place_of(notes: Sequence[Note]) -> Place:
    """Return where the thread stands that has not moved for longest although it has work, for other ranks."""
    busy = [note for note in notes if note.stage not in _WAITS]
    if not busy:
        return Place()
    note = min(busy, key=lambda note: note.since_s)
    what = f"{note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    return Place(note.name, note.stage, what, time.monotonic() - note.since_s)


def describe(note: Note) -> str:
    """Return one line: which thread, what it does, for how long, and on which line of Python it stands."""
    where = f" {note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    frame = sys._current_frames().get(note.thread_id)
    line = ""
    if frame is not None:
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        line = f"; stands at {frame.f_code.co_filename}:{frame.f_lineno} {code}"
    return f"{note.name}: {note.stage}{where} for {time.monotonic() - note.since_s:.1f} s{line}"
