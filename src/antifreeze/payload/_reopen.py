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
from collections.abc import Callable, Iterator
from typing import Any

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
