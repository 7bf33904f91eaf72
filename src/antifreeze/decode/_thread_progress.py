"""Records what each decoder thread is doing, so that a stall is noticed and located."""

from __future__ import annotations

import linecache
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from antifreeze.core import DaemonCall, Location, Stalled, read_regular
from antifreeze.distributed import RankStatus, watch_ranks

T = TypeVar("T")

WAIT, DONE = "wait for room", "done"
_WAITS, _WORKS = (WAIT, DONE), ("open", "decode", "convert")
_LONG_S = 0.1
_CHECK_INTERVAL_S = 0.5
_MAX_SOURCE_NBYTES = 4 << 20


@dataclass(slots=True)
class ThreadProgress:
    """The progress of one thread. Written by that thread alone; read by the consumer without a lock."""

    name: str
    thread_id: int = 0
    stage: str = "starting"
    file: str = ""
    row_group: int = -1
    row: int = 0
    moves: int = 0
    """Incremented with every change, so that a stall can be distinguished from repeated work."""
    since_s: float = field(default_factory=time.monotonic)
    read_s: float = 0.0
    """Seconds spent waiting for the disk."""
    decode_s: float = 0.0
    """CPU seconds spent."""
    _used: tuple[float, int] = (0.0, 0)

    def at(self, stage: str, file: str = "", row_group: int = -1, row: int = 0) -> None:
        """Record what begins now. Called by the thread itself."""
        now_s, used = time.monotonic(), _used_so_far()
        if self.stage in _WORKS:
            computed_s = used[0] - self._used[0]
            waited_s = now_s - self.since_s - computed_s
            self.decode_s += computed_s
            # A thread also waits for a core and for the interpreter lock, but not for long, and reads no blocks then.
            if used[1] > self._used[1] or waited_s > _LONG_S:
                self.read_s += max(0.0, waited_s)
        self.stage, self.file, self.row_group, self.row = stage, file, row_group, row
        self.moves += 1
        self.since_s, self._used = now_s, used


def _used_so_far() -> tuple[float, int]:
    """Return the CPU seconds of this thread, and the number of blocks it has read from disk, if known."""
    # Not the CPU seconds of getrusage: they are updated only at scheduler ticks.
    blocks = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock if sys.platform == "linux" else 0
    return time.thread_time(), blocks


def spent(notes: Collection[ThreadProgress]) -> dict[str, float]:
    """Return the total seconds of all threads, by stage."""
    return {"read": sum(note.read_s for note in notes), "decode": sum(note.decode_s for note in notes)}


def location_of(notes: Sequence[ThreadProgress]) -> Location:
    """Return the location of the busy thread that has been stalled longest, for other ranks."""
    busy = [note for note in notes if note.stage not in _WAITS]
    if not busy:
        return Location()
    note = min(busy, key=lambda note: note.since_s)
    what = f"{note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    return Location(note.name, note.stage, what, time.monotonic() - note.since_s)


def _line_of(file: str, number: int) -> str:
    # The cells of a notebook are only in the cache. Other files are not read by linecache, which would block on a pipe.
    if file in linecache.cache:
        return linecache.getline(file, number).strip()
    try:
        lines = read_regular(file, _MAX_SOURCE_NBYTES).splitlines()
        return lines[number - 1].decode("utf-8", "replace").strip()
    except (OSError, ValueError, IndexError):
        return ""


def describe(note: ThreadProgress) -> str:
    """Return one line: the thread, its stage, for how long, and its current line of Python."""
    where = f" {note.file}, row group {note.row_group}, row {note.row}" if note.file else ""
    frame = sys._current_frames().get(note.thread_id)
    line = ""
    if frame is not None:
        code = _line_of(frame.f_code.co_filename, frame.f_lineno)
        line = f"; at {frame.f_code.co_filename}:{frame.f_lineno} {code}"
    return f"{note.name}: {note.stage}{where} for {time.monotonic() - note.since_s:.1f} s{line}"


class StallTimer:
    """Detects when no thread has made progress for too long."""

    def __init__(self, notes: Sequence[ThreadProgress], limit_s: float) -> None:
        self._notes, self._limit_s = notes, limit_s
        self._moves, self._since_s = -1, time.monotonic()
        self.interval_s = min(_CHECK_INTERVAL_S, limit_s / 4)
        """How long to wait between checks."""

    def check(self) -> None:
        """Raise ``Stalled`` if no thread has made progress for the limit. Waiting for room is not progress."""
        moves = sum(note.moves for note in self._notes if note.stage != WAIT)
        now_s = time.monotonic()
        if moves != self._moves:
            self._moves, self._since_s = moves, now_s
        elif now_s - self._since_s >= self._limit_s:
            silent_s = now_s - self._since_s
            raise Stalled(
                f"no decoder thread has made progress for {silent_s:.1f} s:",
                lines=[describe(note) for note in self._notes],
                hint="check the file named above: a read that never returns is a dead disk, network mount or object "
                "store; set timeout= to change how long to wait",
                silent_s=silent_s,
            )


def bounded(work: Callable[[ThreadProgress], T], limit_s: float) -> T:
    """Return the result of ``work``, or raise ``Stalled`` if it makes no progress for the limit."""
    note = ThreadProgress("decoder thread")

    def run() -> T:
        note.thread_id = threading.get_ident()
        return work(note)

    def status(call: DaemonCall[T]) -> RankStatus:
        return RankStatus(0, 0, call.elapsed_s, call.elapsed_s, location_of([note]))

    call = DaemonCall(run, "antifreeze-first-look")
    timer = StallTimer([note], limit_s)
    with watch_ranks(call, status):
        while not call.wait(timer.interval_s):
            timer.check()
    call.join(timer.interval_s)
    return call.outcome()
