"""The registry of reducers: for objects that pickle rejects, copies, or sends by a name that a worker does not know.

A fork copies objects that belong to one process (locks, pools, handles) in their current state: locked, or with threads
that do not exist in the child. Here a worker gets a fresh lock or a fresh pool instead. Locks of multiprocessing
exclude the workers of one loader from each other; the kernel releases them when their holder exits.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import ctypes
import errno
import fcntl
import functools
import importlib
import io
import mmap
import multiprocessing.reduction
import multiprocessing.synchronize
import os
import queue
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.ipc import create, is_found, is_tensor, reduce_memmap, reduce_mmap, reduce_tensor
from antifreeze.payload._databases import DATABASES, Reduce, lmdb_reducers
from antifreeze.payload._modules import class_members, find_in_class
from antifreeze.payload._reopen import PER_WORKER, reduce_file

_USES_ERRNO = 8  # as in ctypes
_SHARED = {f"multiprocessing.{name}" for name in ("sharedctypes", "heap", "connection", "queues", "managers")}
_LOCK_INTERVAL_S = 0.001
_MAX_LOCK_INTERVAL_S = 0.05
_TRACKER = "multiprocessing.resource_tracker"
_handles: list[int] = []
_shared: set[int] = set()
"""Descriptors that workers share on purpose: those of queues, pipes, locks and the resource tracker."""


# -- descriptors and locks that workers share --------------------------------------------------------------------------


def shared_handles() -> frozenset[int]:
    """Return the descriptors that workers share on purpose."""
    return frozenset(_shared)


@contextlib.contextmanager
def received_handles(fds: list[int], tracker: int) -> Iterator[None]:
    """Make descriptors that were sent with the payload available to the objects rebuilt from it, then close them.

    One of them may be that of the trainer's resource tracker, which records named resources for multiprocessing. A
    worker with another tracker would unlink the trainer's shared memory when it exits.
    """
    _handles[:] = fds
    if tracker >= 0:
        importlib.import_module(_TRACKER)._resource_tracker._fd = _duplicate(fds[tracker])
    try:
        yield
    finally:
        while _handles:
            os.close(_handles.pop())


class Handle:
    """Index of a descriptor in a payload; multiprocessing's objects call ``detach`` on it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def detach(self) -> int:
        """Return the descriptor in this process."""
        return _duplicate(_handles[self.number])


def _duplicate(fd: int) -> int:
    shared = os.dup(fd)
    _shared.add(shared)
    return shared


class KernelLock:
    """A lock between the workers of one loader that is released when its holder exits.

    A semaphore, which multiprocessing uses, has no owner: if its holder is killed, it is never released.
    """

    def __init__(self, handle: Handle, offset: int, recursive: bool) -> None:
        self._fd = handle.detach()
        self._offset = offset
        self._inside = threading.RLock() if recursive else threading.Lock()
        self._depth = 0

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take the lock, as ``multiprocessing.Lock.acquire`` does."""
        wait_s = None if block and timeout is None else max(timeout or 0.0, 0.0) if block else 0.0
        end_s = None if wait_s is None else time.monotonic() + wait_s
        if not self._inside.acquire(timeout=-1 if wait_s is None else wait_s):
            return False
        taken = False
        try:
            taken = self._depth > 0 or self._take(end_s)
        finally:
            if not taken:  # also after an error, such as a deadlock: the next sample may need it
                self._inside.release()
        self._depth += taken
        return taken

    def _take(self, end_s: float | None) -> bool:
        how = fcntl.LOCK_EX if end_s is None else fcntl.LOCK_EX | fcntl.LOCK_NB
        interval_s = _LOCK_INTERVAL_S
        while True:
            try:
                fcntl.lockf(self._fd, how, 1, self._offset)
            except OSError as error:
                if error.errno == errno.EDEADLK:  # the kernel detected that two workers wait for each other
                    raise RuntimeError("deadlock: two workers wait for each other's multiprocessing.Lock") from error
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                    raise
                if end_s is not None and time.monotonic() >= end_s:
                    return False
                time.sleep(interval_s)
                interval_s = min(2 * interval_s, _MAX_LOCK_INTERVAL_S)
            else:
                return True

    def release(self) -> None:
        """Release the lock."""
        if not self._depth:
            raise ValueError("semaphore or lock released too many times")
        self._depth -= 1
        if self._depth == 0:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._offset)
        self._inside.release()

    def __enter__(self) -> bool:
        # Without a timeout, as the user wrote it; a worker that waits here for too long is replaced by the supervisor.
        return self.acquire(block=True, timeout=None)

    def __exit__(self, *_: object) -> None:
        self.release()


class HandleTransfer:
    """The trainer's side: collects the descriptors of objects while they are pickled."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._locks: dict[int, int] = {}
        self._whole: set[int] = set()
        self._lock_file: Handle | None = None
        self._held: list[Any] = []
        self.environments: list[Any] = []
        """Those of LMDB in this pickle: a transaction does not report which one it belongs to."""

    # The two methods that multiprocessing requires of a process that is being started.
    def duplicate_for_child(self, fd: int) -> int:
        """Add a descriptor; return its index."""
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1

    DupFd = Handle

    def identities(self) -> list[Any]:
        """Return what the descriptors refer to, so that two sets of them can be compared."""
        own = None if self._lock_file is None else self._lock_file.number
        found = [os.fstat(fd) for fd in self.fds]
        return [number == own or (each.st_dev, each.st_ino) for number, each in enumerate(found)]

    def duplicate_tracker(self) -> int:
        """Add the descriptor of multiprocessing's resource tracker; return its index, or -1 if there is none."""
        tracker: Any = sys.modules.get(_TRACKER)
        fd = None if tracker is None else tracker._resource_tracker._fd
        return -1 if fd is None else self.duplicate_for_child(fd)

    def reduce_condition(self, condition: Any) -> Any:
        """Keep a condition, or an event, which has one, shared: the trainer takes part in it."""
        self._whole.add(id(condition._lock))
        self._held.append(condition)
        return NotImplemented

    def reduce_lock(self, lock: Any) -> Any:
        """Replace a lock by one that the kernel releases, unless it belongs to a condition."""
        if id(lock) in self._whole:
            return NotImplemented
        if self._lock_file is None:
            self.fds.append(create("antifreeze-locks", 1))
            self._lock_file = Handle(len(self.fds) - 1)
        offset = self._locks.setdefault(id(lock), len(self._locks))
        self._held.append(lock)  # so that its id is not reused
        return KernelLock, (self._lock_file, offset, isinstance(lock, multiprocessing.synchronize.RLock))

    def close(self) -> None:
        """Close the descriptors."""
        while self.fds:
            os.close(self.fds.pop())


# -- objects -----------------------------------------------------------------------------------------------------------


def reducer_of(kind: type, transfer: HandleTransfer) -> Reduce | None:
    """Return a reducer for objects of a type that pickle cannot send to a worker as they are; None for all others.

    A reducer returns NotImplemented if pickle can handle an object.
    """
    others: dict[type, Any] = multiprocessing.reduction.ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    shared: Reduce | None = others.get(kind)
    # Shared values, queues and pipes. Other libraries have registered reducers too: torch's need files in /dev/shm, and
    # the one for sockets would make all workers use one connection.
    if getattr(shared, "__module__", "") in _SHARED:
        return shared
    known = _registry(transfer)
    for base in kind.__mro__:
        if base in known:
            return known[base]
    return _delegating if _delegates_attributes(kind) else None


# -- what belongs to one process -----------------------------------------------------------------------------------


def _fresh(make: Any, _: Any) -> Any:
    return make, ()


def _pool(pool: Any) -> Any:
    return ThreadPoolExecutor, (pool._max_workers, pool._thread_name_prefix, pool._initializer, pool._initargs)


def _memmap(found: Any) -> Any:
    can_map = type(found) is np.memmap and found.size and not found.dtype.hasobject
    return reduce_memmap(found) if can_map else NotImplemented


# -- caches of functions -------------------------------------------------------------------------------------------


def _cached(function: Any) -> Any:
    """Reduce the result of ``lru_cache``, which pickle would send by name. The cache of a worker starts empty."""
    if function.__module__ not in {"__main__", *cloudpickle.list_registry_pickle_by_value()} and is_found(function):
        return NotImplemented
    options = function.cache_parameters()
    return _make_cached, (function.__wrapped__, options["maxsize"], options["typed"])


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


# -- references and variables --------------------------------------------------------------------------------------


def _weak_mapping(mapping: Any) -> Any:
    """Reduce a mapping with weak keys or values: entries that nothing else references are gone after loading."""
    return type(mapping), (), None, None, iter(list(mapping.items()))


def _weak(reference: Any) -> Any:
    target = reference()
    # That of a dead one refers to a set that is collected right after loading.
    return (weakref.ref, (set(),)) if target is None else (type(reference), (target,))


def _variable(variable: contextvars.ContextVar[Any]) -> Any:
    """Reduce a context variable to its default and its current value."""
    default = _asked(contextvars.Context(), variable)
    return _make_variable, (variable.name, default, _asked(contextvars.copy_context(), variable))


def _asked(context: contextvars.Context, variable: contextvars.ContextVar[Any]) -> tuple[Any, ...]:
    try:
        return (context.run(variable.get),)
    except LookupError:
        return ()


def _make_variable(name: str, default: tuple[Any, ...], value: tuple[Any, ...]) -> contextvars.ContextVar[Any]:
    options = {"default": default[0]} if default else {}
    variable = contextvars.ContextVar[Any](name, **options)
    for each in value:
        variable.set(each)
    return variable


# -- native libraries ----------------------------------------------------------------------------------------------


def _library(library: ctypes.CDLL) -> Any:
    """Reduce a library that ctypes has loaded, with the declared types of its functions."""
    kind: Any = library._FuncPtr
    known = {name: value for name, value in vars(library).items() if isinstance(value, kind)}
    types_ = {name: (value.argtypes, value.restype) for name, value in known.items()}
    return _make_library, (type(library), library._name, bool(kind._flags_ & _USES_ERRNO), types_)


def _make_library(kind: Any, name: str | None, use_errno: bool, types_: dict[str, tuple[Any, Any]]) -> ctypes.CDLL:
    library: ctypes.CDLL = kind(name, use_errno=use_errno)
    for function, (argtypes, restype) in types_.items():
        found = getattr(library, function)
        found.restype = restype
        if argtypes is not None:
            found.argtypes = argtypes
    return library


def _pointer(kind: Any) -> Any:
    """Reduce a pointer type: ctypes has one for each type, and accepts no other."""
    target = getattr(kind, "_type_", None)
    return (ctypes.POINTER, (target,)) if target is not None and ctypes.POINTER(target) is kind else NotImplemented


# -- archives ------------------------------------------------------------------------------------------------------


def _arrays(found: Any) -> Any:
    """Reduce the archive that ``numpy.load`` returns for several arrays, which are read on access."""
    return type(found), (found.fid or found.zip.fp, True, found.allow_pickle, found.pickle_kwargs)


# -- compiled models -----------------------------------------------------------------------------------------------


def _script(found: Any) -> Any:
    """Reduce a compiled object of ``torch.jit`` to what it would save to a file."""
    file = io.BytesIO()
    sys.modules["torch.jit"].save(found, file)
    return _make_script, (np.frombuffer(file.getvalue(), np.uint8),)


def _make_script(saved: Any) -> Any:
    return importlib.import_module("torch").jit.load(io.BytesIO(saved))


# -- event loops ---------------------------------------------------------------------------------------------------


def _make_loop(is_running: bool) -> Any:
    """Return an event loop; if the trainer's was running, it runs in a background thread."""
    import asyncio

    loop = asyncio.new_event_loop()
    if is_running:
        threading.Thread(target=loop.run_forever, name="event-loop", daemon=True).start()
    return loop


PER_WORKER[_make_loop] = "an asyncio event loop"


# -- objects that delegate attributes -------------------------------------------------------------------------------


def _delegates_attributes(kind: type) -> bool:
    """Return True if a type has ``__getattr__``, and leaves pickling to the defaults.

    When such an object is rebuilt, pickle looks up ``__setstate__`` while it has no attributes yet; a ``__getattr__``
    that looks up the wrapped object then recurses without end.
    """
    if find_in_class(kind, "__setstate__") is not None or not is_left_to_pickle(kind):
        return False
    return find_in_class(kind, "__getattr__") is not None


def is_left_to_pickle(kind: Any) -> bool:
    """Return True if a type does not customize pickling."""
    if issubclass(kind, type | types.ModuleType) or kind in copyreg.dispatch_table:
        return False
    return all(find_in_class(kind, name) is class_members(object)[name] for name in ("__reduce_ex__", "__reduce__"))


def _delegating(found: Any) -> Any:
    reduced = object.__reduce_ex__(found, 5)
    return (*reduced, _set_state) if isinstance(reduced, tuple) and len(reduced) == 5 else reduced


def _set_state(made: Any, state: Any) -> None:
    members, slots = state if isinstance(state, tuple) else (state, None)
    for name, value in {**(members or {}), **(slots or {})}.items():
        object.__setattr__(made, name, value)


# -- the registry --------------------------------------------------------------------------------------------------

_FRESH = (threading.Lock, threading.RLock, threading.local, queue.SimpleQueue)
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_KNOWN: dict[type, Reduce] = {
    **{type(make()): functools.partial(_fresh, make) for make in _FRESH},
    **dict.fromkeys(_FILES, reduce_file),
    ThreadPoolExecutor: _pool,
    mmap.mmap: lambda found: reduce_mmap(found) or NotImplemented,
    np.memmap: _memmap,
    np.lib.npyio.NpzFile: _arrays,
    functools._lru_cache_wrapper: _cached,
    weakref.WeakKeyDictionary: _weak_mapping,
    weakref.WeakValueDictionary: _weak_mapping,
    weakref.WeakSet: lambda found: (type(found), (list(found),)),
    weakref.ref: _weak,
    types.MappingProxyType: lambda found: (types.MappingProxyType, (dict(found),)),
    contextvars.ContextVar: _variable,
    ctypes.CDLL: _library,
    type(ctypes.POINTER(ctypes.c_int)): _pointer,
}
_OF_LIBRARIES: dict[str, dict[str, Reduce]] = {
    **DATABASES,
    "asyncio": {"AbstractEventLoop": lambda found: (_make_loop, (found.is_running(),))},
    "torch": {"Tensor": lambda found: reduce_tensor(found) if is_tensor(found) else NotImplemented},
    "torch.jit": {"ScriptModule": _script, "ScriptFunction": _script},
}
"""By module and name: a script that has such an object has imported the library, and others need not."""


def _registry(transfer: HandleTransfer) -> dict[type, Reduce]:
    """Return all types that have a reducer, with it."""
    known = {
        **_KNOWN,
        multiprocessing.synchronize.Lock: transfer.reduce_lock,
        multiprocessing.synchronize.RLock: transfer.reduce_lock,
        multiprocessing.synchronize.Condition: transfer.reduce_condition,
    }
    libraries = {**_OF_LIBRARIES, "lmdb": lmdb_reducers(transfer.environments)}
    for library, reducers in libraries.items():
        for name, reduce in reducers.items():
            with contextlib.suppress(KeyError, AttributeError):  # not imported, or being imported by another thread
                known[attrgetter(name)(sys.modules[library])] = reduce
    return known
