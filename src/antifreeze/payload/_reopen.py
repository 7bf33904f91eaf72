"""What every worker has to open for itself, when the payload was loaded before the fork.

A payload is loaded in one of two kinds of process:

* in the worker that uses it. Then everything is opened while the payload is loaded, and this module does nothing;
* in a template, a process that loads the payload once and from which workers are forked. Forks share open file
  descriptions: the offset of one file is the offset of all, a lock of one is a lock of all, and SQLite, HDF5 and LMDB
  each forbid the use of a handle after a fork. So the template opens none of them.

The dataset holds references to the handles, so their identity must survive. A rebuild function has three ways:

``open_in_worker``
    The object exists in the template, but is not initialised (``sqlite3.Connection``, ``h5py.File``): its ``__init__``
    runs in the worker. If ``__setstate__`` of the dataset uses the handle, loading fails in the template, and each
    worker loads the payload for itself.

``reopen_in_worker``
    The object is open in the template, and gets a new file description in the worker, under the same number:
    ``io.FileIO``, and all that reads through one (text files, ``ZipFile``, ``TarFile``, ``NpzFile``). Its offset and
    buffers stay as they are.

``PER_WORKER``
    The object can neither be made without being opened nor be changed later (``lmdb.Environment``, an event loop).
    ``Payload.per_worker_reason`` says so, and the payload must be loaded in each worker.

Shared on purpose, or safe to share, and therefore not listed: mappings of files and shared memory; descriptors of
multiprocessing's pipes, queues and semaphores, of which every worker has the same ones in either case; ``KernelLock``,
whose record locks belong to the process and not to the description, and which nobody holds during a fork; locks and
thread pools, which are fresh and have started no thread.

What user code opens while the payload is loaded (in ``__setstate__``, or while a module is imported) is not known here.
The template finds it by its descriptors; those in ``reopened_fds`` are no reason not to fork.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

PER_WORKER: dict[Callable[..., Any], str] = {}
"""Rebuild functions whose results cannot be opened after a fork, and what they rebuild."""

_openers: list[Callable[[], None]] = []
_known_fds: list[Callable[[], int]] = []
_is_template = False


@contextlib.contextmanager
def loading_for_forks() -> Iterator[None]:
    """Load a payload in a template: what must not be shared by forks is opened by ``run_reopeners``."""
    global _is_template
    _is_template = True
    try:
        yield
    finally:
        _is_template = False


def open_in_worker(opener: Callable[[], None]) -> None:
    """Call ``opener`` once in the process that will use the handle: now, or after the fork."""
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
    """True if a payload holds handles that are not open yet: if loading it fails, that may be why."""
    return bool(_openers)


def reopened_fds() -> frozenset[int]:
    """Return the descriptors that are open in a template, and that every worker opens again for itself."""
    return frozenset(fileno() for fileno in _known_fds) - {-1}


def run_reopeners() -> None:
    """Open what this worker must have for itself. Called once, after the fork and before user code runs."""
    while _openers:
        _openers.pop(0)()
    _known_fds.clear()
