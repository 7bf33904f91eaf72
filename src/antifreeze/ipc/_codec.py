"""Pickles objects: large buffers are written once into shared memory and read in place."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
import weakref
import zlib
from operator import attrgetter
from types import FunctionType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from antifreeze.ipc._segments import Inbox, Outbox, Piece
from antifreeze.ipc._tensors import is_tensor, reduce_tensor

_SMALL = 1 << 15
_LONG = 1 << 16
_END = 1 << 12


class Packed(NamedTuple):
    """A pickled object and the location of its large buffers. A long pickle is itself the first of them."""

    head: bytes | None
    pieces: list[Piece]


class _Pickler(pickle.Pickler):
    """Plain pickle, except for tensors and for noncontiguous arrays."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is type or kind is FunctionType:
            return NotImplemented
        if is_tensor(obj):
            return reduce_tensor(obj)
        if kind is np.ndarray and not obj.flags.writeable and not obj.dtype.hasobject:
            return np.array(obj, order="K").__reduce_ex__(5)  # the receiver owns its batch, and may modify it
        if kind is np.ndarray and obj.nbytes >= _SMALL and not obj.flags.forc and not obj.dtype.hasobject:
            return np.ascontiguousarray(obj).__reduce_ex__(5)
        return NotImplemented


_classes: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


class _ClassPickler(_Pickler):
    """Also pickles instances of classes that cannot be imported, such as those of a script or a notebook.

    Functions of such modules are sent by name: the trainer has them, and by value they would include half a module.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and "<" not in obj.__qualname__ and not is_found(obj):
            return _load_function, (obj.__module__, obj.__qualname__)
        if isinstance(obj, type) and obj.__module__ != "builtins":
            if obj not in _classes:
                _classes[obj] = cloudpickle.dumps(obj)
            return _load_class, (_classes[obj],)
        return super().reducer_override(obj)


def _load_class(blob: bytes) -> Any:
    # cloudpickle tracks the classes that it has pickled: the trainer gets its own class back, not a copy.
    return pickle.loads(blob)  # noqa: S301  made by our own process a moment ago


def is_found(function: Any) -> bool:
    """Return True if the module of a function or class has it under its name."""
    try:
        return attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (KeyError, AttributeError):
        return False


def _load_function(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))


def dump(value: object, *, by_value: bool = False) -> tuple[bytes, list[Any]]:
    """Return the pickle of an object, and its large buffers as byte arrays over their memory.

    ``by_value`` is for objects sent to a worker: a class of the script can be found by name here, but not there.
    """
    if by_value:
        return _dump(_ClassPickler, value)
    try:
        return _dump(_Pickler, value)
    except (pickle.PicklingError, AttributeError, TypeError):
        return _dump(_ClassPickler, value)


def _dump(pickler: type[_Pickler], value: object) -> tuple[bytes, list[Any]]:
    file, raws = io.BytesIO(), []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        # Small buffers stay in the pickle, which then holds them as writable bytes.
        if raw.nbytes < _SMALL:
            return True
        raws.append(np.frombuffer(raw, np.uint8))
        return False

    pickler(file, protocol=5, buffer_callback=take).dump(value)
    return file.getvalue(), raws


def fingerprint(head: bytes, raws: list[Any], before: int) -> int:
    """Return a checksum of an object and all those before it.

    Only both ends and the length of large buffers count, because it is computed for every batch.
    """
    number = zlib.crc32(head, before)
    for raw in raws:
        ends = raw[:_END].tobytes() + raw[-_END:].tobytes()
        number = zlib.crc32(ends, zlib.crc32(str(len(raw)).encode(), number))
    return number


def pack(head: bytes, raws: list[Any], outbox: Outbox) -> Packed:
    """Return a dumped object in shared memory. Buffers from the outbox are not copied; others are copied once."""
    pieces: list[Piece | None] = [outbox.find(raw) for raw in raws]
    copied = [raw for raw, piece in zip(raws, pieces, strict=True) if piece is None]
    if len(head) <= _LONG:
        placed = iter(outbox.place(copied))
        return Packed(head, [piece or next(placed) for piece in pieces])
    first, *rest = outbox.place([np.frombuffer(head, np.uint8), *copied])
    placed = iter(rest)
    return Packed(None, [first, *(piece or next(placed) for piece in pieces)])


def unshare(packed: Packed, outbox: Outbox) -> Packed:
    """Return ``packed`` with copies of the buffers that are still referenced here after the object was dropped.

    Memory that was lent to user code is sent as is. If user code has kept it, for example in a cache, the receiver must
    get a copy: its changes would modify the cache.
    """
    held = [piece for piece in packed.pieces if outbox.is_lent(piece)]
    if not held:
        return packed
    placed = dict(zip(held, outbox.place([outbox.memory(piece) for piece in held]), strict=True))
    return Packed(packed.head, [placed.get(piece, piece) for piece in packed.pieces])


def unpack(packed: Packed, inbox: Inbox) -> Any:
    """Return the object. Its large buffers are the sender's memory until the last reference to them is gone."""
    buffers: list[Any] = list(inbox.open(packed.pieces))
    head = packed.head if packed.head is not None else buffers.pop(0)
    return pickle.loads(head, buffers=buffers)  # noqa: S301  made by our own process, never read from data
