"""Objects into bytes and back: large buffers are written once into shared memory and read where they stand."""

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
    """An object on its way: a pickle, and where its large buffers stand. The pickle itself is one of them if long."""

    head: bytes | None
    pieces: list[Piece]


class _Pickler(pickle.Pickler):
    """Plain pickle, except for tensors and for arrays whose items do not stand one after the other."""

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is type or kind is FunctionType:
            return NotImplemented
        if is_tensor(obj):
            return reduce_tensor(obj)
        if kind is np.ndarray and not obj.flags.writeable and not obj.dtype.hasobject:
            return np.array(obj, order="K").__reduce_ex__(5)  # a batch is its receiver's, to change as it likes
        if kind is np.ndarray and obj.nbytes >= _SMALL and not obj.flags.forc and not obj.dtype.hasobject:
            return np.ascontiguousarray(obj).__reduce_ex__(5)
        return NotImplemented


_classes: weakref.WeakKeyDictionary[type, bytes] = weakref.WeakKeyDictionary()


class _ClassPickler(_Pickler):
    """Also takes instances of classes that cannot be imported, such as those of a script or a notebook.

    Functions of such modules go by their names: the trainer has them, and they would bring half of a module with them.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and "<" not in obj.__qualname__ and not _is_found(obj):
            return _load_function, (obj.__module__, obj.__qualname__)
        if isinstance(obj, type) and obj.__module__ != "builtins":
            if obj not in _classes:
                _classes[obj] = cloudpickle.dumps(obj)
            return _load_class, (_classes[obj],)
        return super().reducer_override(obj)


def _load_class(blob: bytes) -> Any:
    # cloudpickle knows the classes that it has taken apart before: the trainer gets its own class back, not a copy.
    return pickle.loads(blob)  # noqa: S301  made by our own process a moment ago


def _is_found(function: FunctionType) -> bool:
    """Tell whether a function is what its module has under its name."""
    try:
        return attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (KeyError, AttributeError):
        return False


def _load_function(module: str, name: str) -> Any:
    return attrgetter(name)(importlib.import_module(module))


def dump(value: object, *, by_value: bool = False) -> tuple[bytes, list[Any]]:
    """Return an object's pickle, and its large buffers as arrays of bytes over their own memory.

    ``by_value`` is for what goes to a worker: a class of the script can be found by name here, but not there.
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
        # Small ones stay in the pickle, which then holds them as bytes that can be written to.
        if raw.nbytes < _SMALL:
            return True
        raws.append(np.frombuffer(raw, np.uint8))
        return False

    pickler(file, protocol=5, buffer_callback=take).dump(value)
    return file.getvalue(), raws


def fingerprint(head: bytes, raws: list[Any], before: int) -> int:
    """Return a number by which an object, and all those before it, can be told from others.

    Of large buffers only both ends and the length count: it is taken of every batch.
    """
    number = zlib.crc32(head, before)
    for raw in raws:
        ends = raw[:_END].tobytes() + raw[-_END:].tobytes()
        number = zlib.crc32(ends, zlib.crc32(str(len(raw)).encode(), number))
    return number


def pack(head: bytes, raws: list[Any], outbox: Outbox) -> Packed:
    """Return a dumped object in shared memory. Buffers that were lent by the outbox are not copied; others once."""
    pieces: list[Piece | None] = [outbox.find(raw) for raw in raws]
    copied = [raw for raw, piece in zip(raws, pieces, strict=True) if piece is None]
    if len(head) <= _LONG:
        placed = iter(outbox.place(copied))
        return Packed(head, [piece or next(placed) for piece in pieces])
    first, *rest = outbox.place([np.frombuffer(head, np.uint8), *copied])
    placed = iter(rest)
    return Packed(None, [first, *(piece or next(placed) for piece in pieces)])


def unshare(packed: Packed, outbox: Outbox) -> Packed:
    """Return it with those buffers copied that somebody here still holds, once the object itself was let go.

    Memory that was lent to user code is sent as it stands. If user code has kept it, for a cache say, the receiver must
    get a copy: what it changes would change the cache.
    """
    held = [piece for piece in packed.pieces if outbox.is_lent(piece)]
    if not held:
        return packed
    placed = dict(zip(held, outbox.place([outbox.memory(piece) for piece in held]), strict=True))
    return Packed(packed.head, [placed.get(piece, piece) for piece in packed.pieces])


def unpack(packed: Packed, inbox: Inbox) -> Any:
    """Return the object. Its large buffers are the sender's memory, until the last of them dies here."""
    buffers: list[Any] = list(inbox.open(packed.pieces))
    head = packed.head if packed.head is not None else buffers.pop(0)
    return pickle.loads(head, buffers=buffers)  # noqa: S301  made by our own process, never read from data
