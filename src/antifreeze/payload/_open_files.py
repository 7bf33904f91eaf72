"""Reopens open files in a worker: those for reading at the same offset, those for appending at their end.

A file that is open for writing in any other mode is rejected: two processes would overwrite each other.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import mmap
import os
import re
import stat
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from antifreeze.core import NotPicklable, regular_opener
from antifreeze.payload._reopen import reopen_in_worker

_BUFFERED = (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
_HINT = "open it in the worker; open a log with mode 'a', so that all processes append to it"
_NEWLINES = (None, "", "\n", "\r\n", "\r")
_LINE_ENDS = (rb"\r(?!\n)", rb"\r\n", rb"(?<!\r)\n")
_PROBED_NBYTES = 1 << 24
"""How far a file is searched for lines that reveal its newline mode."""


class _Text(NamedTuple):
    """How a file encodes text."""

    encoding: str
    errors: str | None
    newline: str | None
    line_buffering: bool


class OpenFile(NamedTuple):
    """What is needed to reopen a file."""

    path: str
    identity: tuple[int, int]
    """Device and inode: a file can be replaced by another one of the same name."""
    mode: str
    position: int | None
    buffered: bool
    text: _Text | None


def reduce_file(file: Any) -> Any:
    """Return how to reopen a file; NotImplemented if it has no path."""
    for name in _STREAMS:
        if file is getattr(sys, name):
            return getattr, (sys, name)
    if sys.platform != "linux":
        return NotImplemented
    try:
        buffer = file.buffer if isinstance(file, io.TextIOWrapper) else file
        raw = buffer.raw if isinstance(buffer, _BUFFERED) else buffer
        is_closed = file.closed
    except (ValueError, AttributeError):  # detached
        return NotImplemented
    if type(raw) is not io.FileIO:
        return NotImplemented
    if is_closed:
        return _make_closed, (isinstance(file, io.TextIOWrapper), buffer is not raw)
    path = _path(raw)
    if path is None:
        return NotImplemented
    if raw.mode not in ("rb", "ab", "ab+"):
        raise NotPicklable(f"{path} is open for writing (mode {raw.mode!r})", hint=_HINT, path="")
    status = os.fstat(raw.fileno())
    try:
        position = file.tell() if raw.readable() else None
    except OSError:  # during iteration over its lines
        return NotImplemented
    text = _text(file, path, is_log="a" in raw.mode) if isinstance(file, io.TextIOWrapper) else None
    return make_file, (OpenFile(path, (status.st_dev, status.st_ino), raw.mode, position, buffer is not raw, text),)


def _path(raw: io.FileIO) -> str | None:
    """Return the path of a file; None for a pipe, or a file that was deleted or replaced."""
    status, path = os.fstat(raw.fileno()), Path(f"/proc/self/fd/{raw.fileno()}").readlink()
    is_there = stat.S_ISREG(status.st_mode) and path.exists() and os.path.samestat(path.stat(), status)
    return str(path) if is_there else None


def _text(file: io.TextIOWrapper, path: str, *, is_log: bool) -> _Text:
    # A log is flushed at every line: lines of several workers do not mix, and none is lost when a worker exits.
    newline = None if is_log else _newline(file, path)
    return _Text(file.encoding, file.errors, newline, is_log or file.line_buffering)


def _newline(file: io.TextIOWrapper, path: str) -> str | None:
    """Return the argument ``newline`` of a file, which it does not report, from how it reads a line."""
    with open(path, "rb", opener=regular_opener) as probe:
        if not os.fstat(probe.fileno()).st_size:
            return None
        with mmap.mmap(probe.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(b"\r", 0, _PROBED_NBYTES) < 0:
                return None  # all modes read the same
            found = [re.compile(end).search(content, 0, _PROBED_NBYTES) for end in _LINE_ENDS]
            offsets = [match.start() for match in found if match]
            del found
    before = file.tell()
    try:
        with contextlib.suppress(ValueError):  # UnicodeError: an encoding in which this is not the start of a letter
            lines = _lines_at(file, offsets)
            for newline in _NEWLINES:
                with open(path, encoding=file.encoding, errors=file.errors, newline=newline) as other:  # noqa: PTH123
                    if _lines_at(other, offsets) == lines:
                        return newline
    finally:
        file.seek(before)
    return None


def _lines_at(file: Any, offsets: list[int]) -> list[str]:
    lines = []
    for offset in offsets:
        file.seek(offset)
        lines += [file.readline(), file.readline()]
    return lines


def make_file(found: OpenFile) -> Any:
    """Open a file, for a worker."""
    kind = found.mode.replace("b", "" if found.text else "b")
    options: dict[str, Any] = {"buffering": -1 if found.buffered else 0, "opener": regular_opener}
    if found.text is not None:
        options |= {"encoding": found.text.encoding, "errors": found.text.errors, "newline": found.text.newline}
    file: Any = open(found.path, kind, **options)  # noqa: PTH123, SIM115  the dataset's, to close
    status = os.fstat(file.fileno())
    # A log may have been rotated in the meantime.
    if found.mode == "rb" and (status.st_dev, status.st_ino) != found.identity:
        file.close()
        raise FileNotFoundError(errno.ENOENT, "the file that the dataset has open was replaced", found.path)
    if found.text is not None and found.text.line_buffering:
        file.reconfigure(line_buffering=True)
    if found.position is not None:
        file.seek(found.position)
    raw = file.buffer.raw if found.text else file.raw if found.buffered else file
    reference = weakref.ref(raw)
    reopen_in_worker(lambda: _reopen(reference()), lambda: _fileno(reference()))
    return file


def _fileno(raw: io.FileIO | None) -> int:
    return -1 if raw is None or raw.closed else raw.fileno()


def _reopen(raw: io.FileIO | None) -> None:
    """Give a file its own file description, and so its own offset, under the same descriptor number."""
    if (fd := _fileno(raw)) < 0:
        return
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)
    fresh = os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)  # the same file, even if it was renamed
    try:
        os.lseek(fresh, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(fresh, fd, inheritable=False)
    finally:
        os.close(fresh)


def _make_closed(is_text: bool, buffered: bool) -> Any:
    file: Any = open(os.devnull, "r" if is_text else "rb", buffering=-1 if buffered else 0)  # noqa: PTH123, SIM115
    file.close()
    return file
