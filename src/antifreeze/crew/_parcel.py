"""The program, taken apart once for all workers: large buffers stand in one piece of memory that they share."""

from __future__ import annotations

import contextlib
import dis
import fcntl
import inspect
import io
import logging
import mmap
import multiprocessing.context
import os
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np

from antifreeze.child import Handing, Place, Settings
from antifreeze.core import NotPicklable
from antifreeze.crew._modules import needs_torch
from antifreeze.crew._settings import gather_settings
from antifreeze.transport import FilePart, Mappings, create, is_tensor, reduce_memmap, reduce_mmap, reduce_tensor

logger = logging.getLogger("antifreeze")

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
    """What every worker of a crew is born with. Closed by the crew."""

    def __init__(
        self, fd: int, pieces: list[Place], handing: Handing, modules: tuple[str, ...], settings: Settings, tracker: int
    ) -> None:
        self.fd, self.pieces, self.modules, self.settings = fd, pieces, modules, settings
        self._handing, self.tracker = handing, tracker

    def fds(self) -> list[int]:
        """Return descriptors to send along, for the receiver; the channel closes them."""
        return [os.dup(fd) for fd in (self.fd, *self._handing.fds)]

    def close(self) -> None:
        """Let go of the memory; workers that live keep theirs. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._handing.close()


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


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    def __init__(self, file: Any, handing: Handing) -> None:
        # Not a method of its own: the pickler would be in a cycle, and with it all that it has seen.
        self.beside = _Beside(handing)
        super().__init__(file, protocol=5, buffer_callback=self.beside.leave_inside)
        self._handing = handing
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if is_tensor(obj):
            self.modules.add("torch")
            return reduce_tensor(obj)
        if type(obj) is np.memmap and obj.size and not obj.dtype.hasobject:
            return reduce_memmap(obj)
        if isinstance(obj, mmap.mmap) and (reduced := reduce_mmap(obj)) is not None:
            return reduced
        reduce = self._handing.reducer(type(obj))
        if reduce is not None and (reduced := reduce(obj)) is not NotImplemented:
            return reduced
        if isinstance(obj, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            self.modules.add(str(getattr(obj, "__module__", None) or obj.__name__))
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


def make_parcel(program: Any, seed: int, by_value: set[str]) -> Parcel:
    """Take a program apart. ``by_value`` names modules that exist only in this process."""
    settings = gather_settings(by_value)
    handing, file = Handing(), io.BytesIO()
    pickler = _Pickler(file, handing)
    fd = -1
    try:
        with _spawning(handing), _registered(by_value):
            try:
                pickler.dump((program, seed))
            except Exception as error:
                raise explained(program, error) from error
        buffers = [np.frombuffer(file.getbuffer(), np.uint8), *pickler.beside.raws]
        pieces, nbytes = _layout(buffers, pickler.beside.mappings)
        tracker = handing.duplicate_tracker()
        fd = create("antifreeze-dataset", nbytes)
        for raw, piece in zip(buffers, pieces, strict=True):
            if not isinstance(piece, FilePart):
                _write(fd, raw, piece[0])
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    except BaseException:
        handing.close()
        if fd >= 0:
            os.close(fd)
        raise
    modules = ("torch",) if needs_torch(pickler.modules) else getattr(program, "modules", ())
    return Parcel(fd, pieces, handing, modules, settings, tracker)


def _layout(raws: list[Any], mappings: Mappings) -> tuple[list[Place], int]:
    """Return where each buffer will stand, and what is needed beside files."""
    pieces: list[Place] = []
    start = 0
    for raw in raws:
        shared = mappings.is_shared(raw)
        part = mappings.part(raw) if shared or len(raw) >= _LARGE else None
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
