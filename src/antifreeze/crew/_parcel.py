"""The program, taken apart once for all workers: large buffers stand in one piece of memory that they share."""

from __future__ import annotations

import contextlib
import ctypes
import dis
import fcntl
import inspect
import io
import itertools
import logging
import mmap
import multiprocessing.context
import operator
import os
import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.child import LARGE, Handing, Payload, Place, SentList, buffers_of, encode, with_buffers
from antifreeze.core import NotPicklable
from antifreeze.crew._modules import needs_torch
from antifreeze.transport import (
    FilePart,
    Mappings,
    create,
    is_tensor,
    map_bytes,
    reduce_memmap,
    reduce_mmap,
    reduce_tensor,
)

logger = logging.getLogger("antifreeze")

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_SMALL = 1 << 12
_LARGE = 1 << 16
"""What takes as much and stands in a file is not copied."""
_ALIGN = 64
_CHUNK = 1 << 26
_FORK_HINT = (
    "make it, or what it is part of, with multiprocessing.get_context('spawn'): one that was made for forks has no "
    "name by which another process finds it, and workers are never forks of this process"
)
_NOT_SHARED = (
    "antifreeze: %s bytes of the dataset stand in memory that processes share, but workers get a copy: no file that is "
    "open here leads to it. What is written to it later is not seen on the other side. tensor.share_memory_(), "
    "multiprocessing.Array and multiprocessing.shared_memory make memory that stays shared"
)
_HINT = (
    "workers are processes of their own: a connection, a file to write to, a generator or a handle cannot be shared "
    "with them. Open it in the worker, when it is first used (in __getitem__ or worker_init_fn), or leave it out in "
    "__getstate__"
)


class Parcel:
    """What every worker of a loader is started with. Closes its memory when nobody needs it any more."""

    def __init__(self, fd: int, payload: Payload, handing: Handing, modules: tuple[str, ...], found: _Found) -> None:
        self.fd, self.payload, self.modules = fd, payload, modules
        self.libraries = found.libraries
        self._handing = handing
        self._found = replace(found, buffers=[])  # which are the user's, and may be large
        self._memory = map_bytes(fd, os.fstat(fd).st_size, "c")

    def fds(self) -> list[int]:
        """Return descriptors to send along, for the receiver; the channel closes them."""
        return [os.dup(fd) for fd in (self.fd, *self._handing.fds)]

    def is_same(self, found: _Found) -> bool:
        """True if the same program was taken apart again: nothing of it was changed in the meantime."""
        if self.fd < 0 or not found.is_alike(self._found):
            return False
        places = zip(found.buffers, self.payload.pieces, strict=True)
        copies = [
            (raw, self._memory[place[0] : sum(place)]) for raw, place in places if not isinstance(place, FilePart)
        ]
        return all(_are_equal(raw, copy) for raw, copy in copies)

    def lists(self) -> _Lists:
        """Return large lists that need not be looked at item by item, if they are found again."""
        places = iter(self.payload.pieces[len(self.payload.pieces) - sum(s.num_buffers for s in self.payload.lists) :])
        raws = []
        for sent in self.payload.lists:
            taken: Any = itertools.islice(places, sent.num_buffers)
            raws.append([self._memory[start : start + nbytes] for start, nbytes in taken])
        return _Lists(self._found.snapshots, self.payload.lists, raws)

    def close(self) -> None:
        """Let go of the memory; workers that live keep theirs. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._handing.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Found:
    """A program that was taken apart, before anything of it is copied."""

    buffers: list[Any]
    """Its pickle, then the memory beside that."""
    pieces: list[Place]
    nbytes: int
    lists: list[SentList]
    libraries: tuple[str, ...]
    modules: tuple[str, ...]
    handles: list[Any]
    snapshots: list[list[Any]]
    """The items of large lists as they were. None of these can change, so that the same ones are the same list."""

    def is_alike(self, other: _Found) -> bool:
        """True if the two differ in the content of their buffers at the most."""
        return (
            self.pieces == other.pieces
            and self.lists == other.lists
            and self.libraries == other.libraries
            and self.modules == other.modules
            and self.handles == other.handles
        )


def _are_equal(one: Any, other: Any) -> bool:
    places = one.ctypes.data, other.ctypes.data
    return one.nbytes == other.nbytes and (places[0] == places[1] or not _memcmp(*places, one.nbytes))


class _Beside:
    """Buffers that stand beside a pickle."""

    def __init__(self, handing: Handing) -> None:
        self.mappings = Mappings(handing.duplicate_for_child)
        self.raws: list[Any] = []

    def leave_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer, unless it is small and nobody else writes to it."""
        raw = buffer.raw()
        if raw.nbytes < _SMALL and not self.mappings.any_shared:  # of these, a dataset may have millions
            return True
        memory = np.frombuffer(raw, np.uint8)
        if raw.nbytes < _SMALL and not self.mappings.is_shared(memory):
            return True
        self.raws.append(memory)
        return False


class _Lists:
    """Large lists that travel as columns, beside the pickle."""

    def __init__(self, before: list[list[Any]], columns: list[SentList], raws: list[list[Any]]) -> None:
        self._numbers: dict[int, int | None] = {}
        self._held: list[list[Any]] = []
        self.sent: list[SentList] = []
        self.raws: list[list[Any]] = []
        self.snapshots: list[list[Any]] = []
        self._before = list(zip(before, columns, raws, strict=True))

    def number_of(self, items: list[Any]) -> int | None:
        """Return the number of a list that travels as columns; None if it has to be pickled."""
        if id(items) not in self._numbers:
            self._held.append(items)  # so that no other one gets its id
            self._numbers[id(items)] = self._take(items)
        return self._numbers[id(items)]

    def _take(self, items: list[Any]) -> int | None:
        number = len(self.sent)
        if number < len(self._before):
            before, sent, raws = self._before[number]
            if len(before) == len(items) and all(map(operator.is_, before, items)):
                self._add(before, sent, raws)
                return number
        column = encode(items)
        if column is None:
            return None
        self._add(list(items), SentList(with_buffers(column, itertools.repeat(None)), len(items)), buffers_of(column))
        return number

    def _add(self, snapshot: list[Any], sent: SentList, raws: list[Any]) -> None:
        self.snapshots.append(snapshot)
        self.sent.append(sent)
        self.raws.append(raws)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: Any, handing: Handing, lists: _Lists | None = None) -> None:
        # Not a method of its own: the pickler would be in a cycle, and with it all that it has seen.
        self.beside = _Beside(handing)
        super().__init__(file, protocol=5, buffer_callback=self.beside.leave_inside)
        self._handing = handing
        self.lists = lists or _Lists([], [], [])
        self.modules: dict[str, None] = {}
        """Those that a worker imports, in the order in which they were found."""

    def persistent_id(self, obj: Any) -> int | None:
        # Asked for every object there is: nothing else may come first.
        return self.lists.number_of(obj) if type(obj) is list and len(obj) >= LARGE else None

    def reducer_override(self, obj: Any) -> Any:
        if is_tensor(obj):
            self.modules["torch"] = None
            return reduce_tensor(obj)
        if type(obj) is np.memmap and obj.size and not obj.dtype.hasobject:
            return reduce_memmap(obj)
        if isinstance(obj, mmap.mmap) and (reduced := reduce_mmap(obj)) is not None:
            return reduced
        reduce = self._handing.reducer(type(obj))
        if reduce is not None and (reduced := reduce(obj)) is not NotImplemented:
            return reduced
        if isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            self.modules[_name_of(obj)] = None
        reduced = super().reducer_override(obj)
        if isinstance(obj, types.FunctionType) and isinstance(reduced, tuple):
            _add_names_of_classes(obj, reduced)
        return reduced


def _add_names_of_classes(function: types.FunctionType, reduced: tuple[Any, ...]) -> None:
    """Have a function bring along what classes that it defines look up in their bodies: cloudpickle leaves it out."""
    state = reduced[2] if len(reduced) > 2 else None
    known = state[1].get("__globals__") if isinstance(state, tuple) and isinstance(state[1], dict) else None
    if isinstance(known, dict):
        values = function.__globals__
        known.update({name: values[name] for name in _names_in_classes(function.__code__) if name in values})


def _names_in_classes(code: types.CodeType) -> Iterator[str]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names_in_classes(inner)
            if not inner.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
                yield from (i.argval for i in dis.get_instructions(inner) if i.opname == "LOAD_NAME")


def _name_of(found: Any) -> str:
    """Return the module that a worker has to import for a class, a function or a module."""
    is_module = isinstance(found, types.ModuleType)
    return str(found.__name__ if is_module else getattr(found, "__module__", None) or found.__name__)


def make_parcel(program: Any, by_value: set[str], before: Parcel | None = None) -> Parcel:
    """Take a program apart; return ``before`` if that is the same one.

    ``by_value`` names modules that exist only in this process.
    """
    handing = Handing()
    fd = -1
    try:
        found = _taken_apart(program, by_value, handing, before)
        if before is not None and before.is_same(found):
            handing.close()
            return before
        tracker = handing.duplicate_tracker()
        fd = create("antifreeze-dataset", found.nbytes)
        for raw, piece in zip(found.buffers, found.pieces, strict=True):
            if not isinstance(piece, FilePart):
                _write(fd, raw, piece[0])
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    except BaseException:
        handing.close()
        if fd >= 0:
            os.close(fd)
        raise
    return Parcel(fd, Payload(found.pieces, found.lists, tracker), handing, found.modules, found)


def _taken_apart(program: Any, by_value: set[str], handing: Handing, before: Parcel | None) -> _Found:
    file, lists = io.BytesIO(), before.lists() if before is not None else None
    pickler = _Pickler(file, handing, lists)
    with _spawning(handing), _registered(by_value):
        try:
            pickler.dump(program)
        except Exception as error:
            raise explained(program, error) from error
    lists = pickler.lists
    columns = [np.ascontiguousarray(raw).view(np.uint8) for raws in lists.raws for raw in raws]
    buffers = [np.frombuffer(file.getbuffer(), np.uint8), *pickler.beside.raws, *columns]
    pieces, nbytes = _layout(buffers, pickler.beside.mappings, num_own=len(columns))
    libraries = ("torch",) if needs_torch(pickler.modules) else getattr(program, "modules", ())
    modules = tuple(name for name in pickler.modules if name not in {"__main__", "__mp_main__", *by_value})
    return _Found(buffers, pieces, nbytes, lists.sent, libraries, modules, handing.identities(), lists.snapshots)


def _layout(raws: list[Any], mappings: Mappings, *, num_own: int) -> tuple[list[Place], int]:
    """Return where each buffer is put, and how much memory is needed beside files; the last ``num_own`` are ours."""
    pieces: list[Place] = []
    start = 0
    for left, raw in zip(range(len(raws), 0, -1), raws, strict=True):
        shared = left > num_own and mappings.is_shared(raw)
        part = mappings.part(raw) if left > num_own and (shared or len(raw) >= _LARGE) else None
        if shared and part is None:
            logger.warning(_NOT_SHARED, len(raw))
        pieces.append(part or (start, len(raw)))
        start += 0 if part else -(-len(raw) // _ALIGN) * _ALIGN
    return pieces, start


def _write(fd: int, raw: Any, start: int) -> None:
    view = memoryview(raw)
    while len(view):
        count = os.pwrite(fd, view[:_CHUNK], start)
        view, start = view[count:], start + count


@contextlib.contextmanager
def _spawning(handing: Handing) -> Iterator[None]:
    """Let queues and shared values of multiprocessing be taken apart: they refuse unless a process is being started."""
    context: Any = multiprocessing.context
    before = context.get_spawning_popen()
    context.set_spawning_popen(handing)
    try:
        yield
    finally:
        context.set_spawning_popen(before)


@contextlib.contextmanager
def _registered(by_value: set[str]) -> Iterator[None]:
    # In a process that multiprocessing has spawned, the script's own classes are of this module.
    modules = [sys.modules[name] for name in {*by_value, "__mp_main__"} if name in sys.modules]
    fresh = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in fresh:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in fresh:
            cloudpickle.unregister_pickle_by_value(module)


def explained(program: Any, error: Exception) -> NotPicklable:
    """Return an error that names which part of the program cannot be sent."""
    path, value = _culprit(program)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    hint = _FORK_HINT if type(value).__name__ == "SemLock" else _HINT
    return NotPicklable(
        f"{path} (a {kind}) cannot be sent to a worker process: {type(error).__name__}: {error}", hint=hint, path=path
    )


def _culprit(program: Any) -> tuple[str, Any]:
    """Return the deepest part that cannot be pickled by itself, and how it is reached."""
    parts = {name: value for name, value in vars(program).items() if not _can_travel(value)}
    if not parts:
        return "the dataset", program
    name, value = next(iter(parts.items()))
    path = name.lstrip("_")
    for _ in range(8):
        inner = _members(value)
        found = next(((n, v) for n, v in inner if not _can_travel(v)), None)
        if found is None:
            break
        path, value = path + found[0], found[1]
    return path, value


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", v) for key, v in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", v) for i, v in enumerate(value[:1000])]
    found = (
        [(f".{name}", v) for name, v in getattr(value, "__dict__", {}).items()] if not isinstance(value, type) else []
    )
    closure = getattr(value, "__closure__", None) or ()
    names = getattr(getattr(value, "__code__", None), "co_freevars", ())
    for variable, cell in zip(names, closure, strict=False):
        with contextlib.suppress(ValueError):
            found.append((f", which uses {variable}", cell.cell_contents))
    known = getattr(value, "__globals__", {})
    uses = [name for name in getattr(getattr(value, "__code__", None), "co_names", ()) if name in known]
    return found + [(f", which uses {name}", known[name]) for name in uses]


def _can_travel(value: Any) -> bool:
    handing = Handing()
    try:
        with _spawning(handing):
            _Pickler(io.BytesIO(), handing).dump(value)
    except Exception:  # noqa: BLE001  border: it calls the user's reducers
        return False
    finally:
        handing.close()
    return True
