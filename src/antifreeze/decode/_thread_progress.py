"""What each thread is doing, so that a stall can be named."""

from __future__ import annotations

import linecache
import resource
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from antifreeze.core import read_regular
from antifreeze.distributed import Location

WAIT, DONE = "wait for room", "done"
_WAITS, _WORKS = (WAIT, DONE), ("open", "decode", "convert")
_LONG_S = 0.1
_MAX_SOURCE_NBYTES = 4 << 20


@dataclass(slots=True)
class ThreadProgress:
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
    read_s: float = 0.0
    """How long it has waited for the disk."""
    decode_s: float = 0.0
    """How long it has computed."""
    _used: tuple[float, int] = (0.0, 0)

    def at(self, stage: str, file: str = "", row_group: int = -1, row: int = 0) -> None:
        """Write down what begins now. Called by the thread itself."""
        now_s, used = time.monotonic(), _used_so_far()
        if self.stage in _WORKS:
            computed_s = used[0] - self._used[0]
            waited_s = now_s - self.since_s - computed_s
            self.decode_s += computed_s
            # A thread also waits for a core and for the interpreter's lock, but not for long, and gets no blocks then.
            if used[1] > self._used[1] or waited_s > _LONG_S:
                self.read_s += max(0.0, waited_s)
        self.stage, self.file, self.row_group, self.row = stage, file, row_group, row
        self.moves += 1
        self.since_s, self._used = now_s, used


def _used_so_far() -> tuple[float, int]:
    """Return the CPU seconds of this thread, and how many blocks it has had from a disk, where that is known."""
    # Not its own CPU seconds: they are brought up to date only with the scheduler's clock.
    blocks = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock if sys.platform == "linux" else 0
    return time.thread_time(), blocks


def spent(notes: Collection[ThreadProgress]) -> dict[str, float]:
    """Return the seconds of all threads together, by stage."""
    return {"read": sum(note.read_s for note in notes), "decode": sum(note.decode_s for note in notes)}


def location_of(notes: Sequence[ThreadProgress]) -> Location:
    """Return where the thread stands that has not moved for longest although it has work, for other ranks."""
    busy = [note for note in notes if note.stage not in _WAITS]
    if not busy:
        return Location()
    note = min(busy, key=lambda note: note.since_s)
    what = f"{note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    return Location(note.name, note.stage, what, time.monotonic() - note.since_s)


def _line_of(file: str, number: int) -> str:
    # A notebook's cells are there and in no file. Others are not read by linecache, which would wait for a pipe.
    if file in linecache.cache:
        return linecache.getline(file, number).strip()
    try:
        lines = read_regular(file, _MAX_SOURCE_NBYTES).splitlines()
        return lines[number - 1].decode("utf-8", "replace").strip()
    except (OSError, ValueError, IndexError):
        return ""


def describe(note: ThreadProgress) -> str:
    """Return one line: which thread, what it does, for how long, and on which line of Python it stands."""
    where = f" {note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    frame = sys._current_frames().get(note.thread_id)
    line = ""
    if frame is not None:
        code = _line_of(frame.f_code.co_filename, frame.f_lineno)
        line = f"; stands at {frame.f_code.co_filename}:{frame.f_lineno} {code}"
    return f"{note.name}: {note.stage}{where} for {time.monotonic() - note.since_s:.1f} s{line}"
