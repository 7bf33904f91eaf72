"""The registry of reducers: for objects that pickle rejects, copies, or sends by a name that a worker does not know."""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import ctypes
import functools
import importlib
import io
import mmap
import multiprocessing.reduction
import multiprocessing.synchronize
import queue
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.ipc import is_found, is_tensor, reduce_memmap, reduce_mmap, reduce_tensor
from antifreeze.payload._databases import DATABASES, Reduce, lmdb_reducers
from antifreeze.payload._modules import class_members, find_in_class
from antifreeze.payload._process_local import HandleTransfer
from antifreeze.payload._reopen import PER_WORKER, reduce_file

_USES_ERRNO = 8  # as in ctypes
_SHARED = {f"multiprocessing.{name}" for name in ("sharedctypes", "heap", "connection", "queues", "managers")}


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
