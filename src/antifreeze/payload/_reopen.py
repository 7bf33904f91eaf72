"""Handles that every worker has to open itself when the payload was loaded before the fork.

A payload is loaded in one of two kinds of process:

* in the worker that uses it. Then everything is opened while the payload is loaded, and this module does nothing;
* in a template, a process that loads the payload once and from which workers are forked. Forks share open file
  descriptions: the offset of one file is the offset of all, a lock of one is a lock of all, and SQLite, HDF5 and LMDB
  each forbid the use of a handle after a fork. So the template opens none of them.

The dataset holds references to the handles, so their identity must be preserved. A rebuild function has three options:

``open_in_worker``
    The object exists in the template, but is not initialized (``sqlite3.Connection``, ``h5py.File``): its ``__init__``
    runs in the worker. If ``__setstate__`` of the dataset uses the handle, loading fails in the template, and each
    worker loads the payload itself.

``reopen_in_worker``
    The object is open in the template, and gets a new file description in the worker, under the same descriptor number:
    ``io.FileIO``, and everything that reads through one (text files, ``ZipFile``, ``TarFile``, ``NpzFile``). Its offset
    and buffers are preserved.

``PER_WORKER``
    The object can neither be created without being opened nor be changed later (``lmdb.Environment``, an event loop).
    ``Payload.per_worker_reason`` is set, and the payload is loaded in each worker.

Shared on purpose, or safe to share, and therefore not listed: mappings of files and shared memory; descriptors of
multiprocessing's pipes, queues and semaphores, which all workers share in either case; ``KernelLock``, whose record
locks belong to the process and not to the description, and which is not held during a fork; locks and thread pools,
which are fresh and have started no thread.

Files that user code opens while the payload is loaded (in ``__setstate__``, or during an import) are not known here.
The template finds them by their descriptors; those in ``reopened_fds`` do not prevent a fork.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from antifreeze.core import NotPicklable, regular_opener

PER_WORKER: dict[Callable[..., Any], str] = {}
"""Rebuild functions whose results cannot be opened after a fork, and the names of what they rebuild."""

_openers: list[Callable[[], None]] = []
_known_fds: list[Callable[[], int]] = []
_is_template = False


@contextlib.contextmanager
def loading_for_forks() -> Iterator[None]:
    """Load a payload in a template: ``run_reopeners`` opens what forks must not share."""
    global _is_template
    _is_template = True
    try:
        yield
    finally:
        _is_template = False


def open_in_worker(opener: Callable[[], None]) -> None:
    """Call ``opener`` once in the process that uses the handle: now, or after the fork."""
    if _is_template:
        _openers.append(opener)
    else:
        opener()


def reopen_in_worker(reopener: Callable[[], None], fileno: Callable[[], int]) -> None:
    """Call ``reopener`` after the fork, if there is one. ``fileno`` returns the descriptor, or -1 if it is closed."""
    if _is_template:
        _openers.append(reopener)
        _known_fds.append(fileno)


def has_deferred() -> bool:
    """True if a payload holds handles that are not open yet, which may be why loading it failed."""
    return bool(_openers)


def reopened_fds() -> frozenset[int]:
    """Return the descriptors that are open in a template and that every worker reopens."""
    return frozenset(fileno() for fileno in _known_fds) - {-1}


def run_reopeners() -> None:
    """Open the handles that this worker must not share. Called once, after the fork and before user code runs."""
    while _openers:
        _openers.pop(0)()
    _known_fds.clear()


def identity_of(file: str | int) -> tuple[int, int]:
    """Return device and inode of a path or descriptor: a file can be replaced by another one of the same name."""
    status = os.stat(file)  # noqa: PTH116  a descriptor has no Path
    return status.st_dev, status.st_ino


def check_identity(path: str, identity: tuple[int, int], fd: int | None = None) -> None:
    """Raise ``FileNotFoundError`` if a path, or what was opened by it, is no longer the trainer's file."""
    if identity_of(path if fd is None else fd) != identity:
        raise FileNotFoundError(errno.ENOENT, "the file that the dataset has open was replaced", path)


# -- files ---------------------------------------------------------------------------------------------------------
# Those for reading are reopened at the same offset, those for appending at their end. One that is open for writing in
# any other mode is rejected: two processes would overwrite each other.

_STREAMS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")
_HINT = "open it in the worker; open a log with mode 'a', so that all processes append to it"
_NEWLINES = (None, "", "\n", "\r\n", "\r")
_LINE_ENDS = (rb"\r(?!\n)", rb"\r\n", rb"(?<!\r)\n")
_PROBED_NBYTES = 1 << 24
"""How far a file is searched for lines that reveal its newline mode."""


class OpenFile(NamedTuple):
    """What is needed to reopen a file."""

    path: str
    identity: tuple[int, int]
    mode: str
    position: int | None
    options: dict[str, Any]
    """Other arguments of ``open``."""
    line_buffering: bool


def reduce_file(file: Any) -> Any:
    """Return how to reopen a file; NotImplemented if it has no path."""
    for name in _STREAMS:
        if file is getattr(sys, name):
            return getattr, (sys, name)
    if sys.platform != "linux":
        return NotImplemented
    is_text = isinstance(file, io.TextIOWrapper)
    try:
        raw = _raw_of(file)
        options: dict[str, Any] = {"buffering": 0 if raw is file else -1}
        is_closed = file.closed
    except (ValueError, AttributeError):  # detached
        return NotImplemented
    if type(raw) is not io.FileIO:
        return NotImplemented
    if is_closed:
        return _make_closed, ("r" if is_text else "rb", options)
    path = _path(raw)
    if path is None:
        return NotImplemented
    if raw.mode not in ("rb", "ab", "ab+"):
        raise NotPicklable(f"{path} is open for writing (mode {raw.mode!r})", hint=_HINT, path="")
    try:
        position = file.tell() if raw.readable() else None
    except OSError:  # during iteration over its lines
        return NotImplemented
    mode, line_buffering = raw.mode, False
    if is_text:
        mode, is_log = mode.replace("b", ""), "a" in mode
        options |= {"encoding": file.encoding, "errors": file.errors}
        options["newline"] = None if is_log else _newline(file, path)
        # A log is flushed at every line: lines of several workers do not mix, and none is lost when a worker exits.
        line_buffering = is_log or file.line_buffering
    return make_file, (OpenFile(path, identity_of(raw.fileno()), mode, position, options, line_buffering),)


def _raw_of(file: Any) -> Any:
    """Return the innermost part of a file, which has the descriptor."""
    buffer = file.buffer if isinstance(file, io.TextIOWrapper) else file
    return buffer.raw if isinstance(buffer, io.BufferedReader | io.BufferedWriter | io.BufferedRandom) else buffer


def _path(raw: io.FileIO) -> str | None:
    """Return the path of a file; None for a pipe, or a file that was deleted or replaced."""
    status, path = os.fstat(raw.fileno()), Path(f"/proc/self/fd/{raw.fileno()}").readlink()
    is_there = stat.S_ISREG(status.st_mode) and path.exists() and os.path.samestat(path.stat(), status)
    return str(path) if is_there else None


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
    file: Any = open(found.path, found.mode, opener=regular_opener, **found.options)  # noqa: SIM115  the dataset's
    if found.mode in ("r", "rb"):  # a log may have been rotated in the meantime
        try:
            check_identity(found.path, found.identity, file.fileno())
        except OSError:
            file.close()
            raise
    if found.line_buffering:
        file.reconfigure(line_buffering=True)
    if found.position is not None:
        file.seek(found.position)
    reference = weakref.ref(_raw_of(file))
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


def _make_closed(mode: str, options: dict[str, Any]) -> Any:
    file: Any = open(os.devnull, mode, **options)  # noqa: PTH123, SIM115
    file.close()
    return file
