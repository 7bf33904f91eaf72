"""What pickle refuses, or sends by a name that a worker does not know, and how it is made anew there."""

from __future__ import annotations

import contextvars
import copyreg
import ctypes
import functools
import importlib
import io
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.payload._databases import h5py_reducers, sqlite_reducers
from antifreeze.payload._inspection import class_members, find_in_class
from antifreeze.payload._open_files import reduce_file
from antifreeze.payload._reopen import PER_WORKER

Reduce = Callable[[Any], Any]
_USES_ERRNO = 8  # as in ctypes


def _rebuilders() -> Iterator[tuple[type, Reduce]]:
    """Yield kinds of objects, and how each is taken apart; it may turn out that pickle can do it (NotImplemented)."""
    yield functools._lru_cache_wrapper, _cached
    yield weakref.WeakKeyDictionary, _weak_mapping
    yield weakref.WeakValueDictionary, _weak_mapping
    yield weakref.WeakSet, lambda found: (type(found), (list(found),))
    yield weakref.ref, _weak
    yield types.MappingProxyType, lambda found: (types.MappingProxyType, (dict(found),))
    yield contextvars.ContextVar, _variable
    yield ctypes.CDLL, _library
    yield type(ctypes.POINTER(ctypes.c_int)), _pointer
    for kind in (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO):
        yield kind, reduce_file
    yield np.lib.npyio.NpzFile, _arrays
    yield from _of_libraries()
    if "asyncio" in sys.modules:  # to import it takes longer than to start a worker
        yield sys.modules["asyncio"].AbstractEventLoop, lambda found: (_make_loop, (found.is_running(),))


def _of_libraries() -> Iterator[tuple[type, Reduce]]:
    """Yield kinds of libraries that a script has imported."""
    if hasattr(sqlite3 := sys.modules.get("sqlite3"), "Connection"):
        yield from sqlite_reducers(sqlite3)
    if hasattr(h5py := sys.modules.get("h5py"), "AttributeManager"):
        yield from h5py_reducers(h5py)
    jit: Any = sys.modules.get("torch.jit")
    if hasattr(jit, "ScriptFunction"):
        yield jit.ScriptModule, _script
        yield jit.ScriptFunction, _script


def rebuilder(kind: type) -> Reduce | None:
    """Return how objects of a kind are taken apart that pickle would not bring to a worker; None for all others."""
    for known, reduce in _rebuilders():
        if known in kind.__mro__:
            return reduce
    return _delegating if _asks_another(kind) else None


# -- caches of functions -------------------------------------------------------------------------------------------


def _cached(function: Any) -> Any:
    """Take apart what ``lru_cache`` returns, which pickle would send by its name. A worker's begins empty."""
    if _is_importable(function):
        return NotImplemented
    options = function.cache_parameters()
    return _make_cached, (function.__wrapped__, options["maxsize"], options["typed"])


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _is_importable(function: Any) -> bool:
    """Tell whether a worker finds this very function under its name."""
    try:
        module, name = function.__module__, function.__qualname__
        return module not in _by_value() and attrgetter(name)(sys.modules[module]) is function
    except (KeyError, AttributeError):
        return False


def _by_value() -> set[str]:
    """Return the modules that workers cannot import."""
    return {"__main__", *cloudpickle.list_registry_pickle_by_value()}


# -- references and variables --------------------------------------------------------------------------------------


def _weak_mapping(mapping: Any) -> Any:
    """Take apart a mapping that holds its keys or values weakly: what nothing else holds is gone once it was loaded."""
    return type(mapping), (), None, None, iter(list(mapping.items()))


def _weak(reference: Any) -> Any:
    target = reference()
    return (_make_dead, ()) if target is None else (type(reference), (target,))


def _make_dead() -> weakref.ref[Any]:
    return weakref.ref(threading.Event())  # which nothing holds


def _variable(variable: contextvars.ContextVar[Any]) -> Any:
    """Take apart a context variable: its default, and its value here."""
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
    """Take apart a library that ctypes has loaded, with the types of its functions that were told."""
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
    """Take apart the type of a pointer: ctypes has one for each type, and takes no other."""
    target = getattr(kind, "_type_", None)
    return (ctypes.POINTER, (target,)) if target is not None and ctypes.POINTER(target) is kind else NotImplemented


# -- archives ------------------------------------------------------------------------------------------------------


def _arrays(found: Any) -> Any:
    """Take apart what ``numpy.load`` returns for several arrays: they are read when they are asked for."""
    return type(found), (found.fid or found.zip.fp, True, found.allow_pickle, found.pickle_kwargs)


# -- compiled models -----------------------------------------------------------------------------------------------


def _script(found: Any) -> Any:
    """Take apart what ``torch.jit`` has compiled: what it would save to a file."""
    file = io.BytesIO()
    sys.modules["torch.jit"].save(found, file)
    return _make_script, (np.frombuffer(file.getvalue(), np.uint8),)


def _make_script(saved: Any) -> Any:
    return importlib.import_module("torch").jit.load(io.BytesIO(saved))


# -- event loops ---------------------------------------------------------------------------------------------------


def _make_loop(is_running: bool) -> Any:
    """Return an event loop; if the trainer's ran, it runs in a thread of its own."""
    import asyncio

    loop = asyncio.new_event_loop()
    if is_running:
        threading.Thread(target=loop.run_forever, name="event-loop", daemon=True).start()
    return loop


PER_WORKER[_make_loop] = "an asyncio event loop"


# -- objects that ask another one for what they do not have ---------------------------------------------------------


def _asks_another(kind: type) -> bool:
    """Tell whether a kind has ``__getattr__``, and leaves the rest to pickle.

    When such an object is rebuilt, pickle asks it for ``__setstate__``, while it has nothing yet; a ``__getattr__``
    that looks for the object behind it then calls itself without end.
    """
    if find_in_class(kind, "__setstate__") is not None or not is_left_to_pickle(kind):
        return False
    return find_in_class(kind, "__getattr__") is not None


def is_left_to_pickle(kind: Any) -> bool:
    """Tell whether a kind says nothing about how its objects are taken apart."""
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
