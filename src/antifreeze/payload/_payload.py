"""Pickles the program once for all workers; large buffers are in one shared memory segment."""

from __future__ import annotations

import ctypes
import fcntl
import io
import os
import pickle
import sys
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from antifreeze.core import get_logger
from antifreeze.ipc import Bytes, FilePart, Mappings, create, map_bytes, map_part
from antifreeze.payload._modules import needs_torch
from antifreeze.payload._pickler import Pickler, TakenList, explained, registered
from antifreeze.payload._reducers import HandleTransfer, received_handles
from antifreeze.payload._shared_list import SharedList, with_arrays

logger = get_logger()

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_LARGE = 1 << 16
"""Buffers of at least this size that are mapped from a file are not copied."""
_ALIGN = 64
_TORCH_TEXT = pickle.SHORT_BINUNICODE + b"\x05torch"
_CHUNK = 1 << 26
_NOT_SHARED = (
    "antifreeze: %s bytes of the dataset are in shared memory that workers cannot reopen; each worker gets a private "
    "copy, and later writes are not seen on the other side. Use tensor.share_memory_(), multiprocessing.Array or "
    "multiprocessing.shared_memory for memory that stays shared"
)


BytesAt = tuple[int, int] | FilePart
"""Location of some bytes: offset and size in the payload, or a part of a file."""


def bytes_at(locations: list[BytesAt], payload: int, handles: list[int]) -> list[Bytes]:
    """Return the bytes at these locations. The payload is mapped copy-on-write: writes stay in this process."""
    memory = map_bytes(payload, os.fstat(payload).st_size, "c")
    return [map_part(p, handles) if isinstance(p, FilePart) else memory[p[0] : sum(p)] for p in locations]


class PayloadLayout(NamedTuple):
    """Where a program is. The descriptors of the payload and of transferred handles are sent with the message."""

    pieces: list[BytesAt]
    """The program's pickle, then its buffers."""
    tracker: int
    """Index of the handle of the trainer's resource tracker; -1 if it has none."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A pickled program, before its buffers are copied. Two are equal if they differ at most in their buffers."""

    buffers: list[Any] = field(compare=False)
    """Its pickle, then its out-of-band buffers."""
    pieces: list[BytesAt]
    nbytes: int
    lists: list[TakenList] = field(compare=False)
    libraries: tuple[str, ...]
    modules: tuple[str, ...]
    handles: list[Any]
    per_worker_reason: str
    """Why each worker has to load this itself, as a sentence; "" if a template process can."""
    rebuilt: tuple[str, ...]
    """Names of the types that workers rebuild in a way of ours."""


class Payload:
    """What every worker of a loader is started with. Closes its memory when it is no longer referenced."""

    def __init__(self, fd: int, tracker: int, transfer: HandleTransfer, found: _Found) -> None:
        self.fd = fd
        self.layout = PayloadLayout(found.pieces, tracker)
        self.libraries = found.libraries
        self.modules = found.modules
        self.per_worker_reason = found.per_worker_reason
        self.rebuilt = found.rebuilt
        self._transfer = transfer
        self._memory = map_bytes(fd, os.fstat(fd).st_size, "c")
        places = {raw.ctypes.data: piece for raw, piece in zip(found.buffers, found.pieces, strict=True)}

        def stored(array: Any) -> Any:
            piece: Any = places.get(array.ctypes.data)
            if piece is None:
                return array
            copy = self._memory[piece[0] : sum(piece)].view(array.dtype)
            copy.flags.writeable = array.flags.writeable  # or its pickle would be another one
            return copy

        self.lists = [TakenList(items, with_arrays(column, stored)) for items, column in found.lists]
        """Large lists, over the payload's memory: unchanged ones need not be encoded again."""
        self._found = replace(found, buffers=[], lists=[])  # which are the user's, and may be large

    def fds(self) -> list[int]:
        """Return descriptors to send to the receiver; the channel closes them."""
        return [os.dup(fd) for fd in (self.fd, *self._transfer.fds)]

    def is_same(self, found: _Found) -> bool:
        """True if ``found`` is the same program, unchanged."""
        if self.fd < 0 or found != self._found:
            return False
        for raw, piece in zip(found.buffers, found.pieces, strict=True):
            if not isinstance(piece, FilePart):
                addresses = raw.ctypes.data, self._memory[piece[0] :].ctypes.data
                if addresses[0] != addresses[1] and _memcmp(*addresses, raw.nbytes):
                    return False
        return True

    def close(self) -> None:
        """Release the memory; running workers keep theirs. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self._transfer.close()

    def __del__(self) -> None:
        self.close()


def make_payload(
    program: Any,
    by_value: set[str],
    before: Payload | None = None,
    replaced: AbstractSet[tuple[str, str]] = frozenset(),
) -> Payload:
    """Pickle a program; return ``before`` if that is the same one.

    ``by_value`` names modules that exist only in this process, ``replaced`` what was replaced in libraries.
    """
    transfer = HandleTransfer()
    fd = -1
    try:
        found = _pickled(program, by_value, transfer, before, replaced)
        if before is not None and before.is_same(found):
            transfer.close()
            return before
        tracker = transfer.duplicate_tracker()
        fd = create("antifreeze-dataset", found.nbytes)
        for raw, piece in zip(found.buffers, found.pieces, strict=True):
            if not isinstance(piece, FilePart):
                _write(fd, raw, piece[0])
        if sys.platform == "linux":
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    except BaseException:
        transfer.close()
        if fd >= 0:
            os.close(fd)
        raise
    return Payload(fd, tracker, transfer, found)


def _pickled(
    program: Any,
    by_value: set[str],
    transfer: HandleTransfer,
    before: Payload | None,
    replaced: AbstractSet[tuple[str, str]],
) -> _Found:
    file = io.BytesIO()
    pickler = Pickler(file, transfer, before.lists if before is not None else (), replaced=replaced)
    with registered(by_value):
        try:
            pickler.dump(program)
        except Exception as error:
            raise explained(program, error) from error
    buffers = [np.frombuffer(file.getbuffer(), np.uint8), *pickler.out_of_band.raws]
    pieces, nbytes = _layout(buffers, pickler.out_of_band.mappings)
    # A guess whether workers will import torch: a module may use it, or the string "torch" may be a setting. A Hugging
    # Face dataset that returns tensors holds the string, and imports torch with its first row.
    has_text = "torch" in sys.modules and _TORCH_TEXT in bytes(file.getbuffer()[: 1 << 20])
    libraries = ("torch",) if has_text or needs_torch(pickler.modules) else getattr(program, "modules", ())
    modules = tuple(name for name in pickler.modules if name not in {"__main__", "__mp_main__", *by_value})
    return _Found(
        buffers=buffers,
        pieces=pieces,
        nbytes=nbytes,
        lists=pickler.lists.taken,
        libraries=libraries,
        modules=modules,
        handles=transfer.identities(),
        per_worker_reason=pickler.per_worker_reason,
        rebuilt=tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in pickler.rebuilt),
    )


def _layout(raws: list[Any], mappings: Mappings) -> tuple[list[BytesAt], int]:
    """Return the location of each buffer, and the size of the payload."""
    pieces: list[BytesAt] = []
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


# -- in a worker ---------------------------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Large lists are pickled as columns."""

    def __init__(self, file: io.BytesIO, buffers: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._lists: dict[int, SharedList] = {}

    def persistent_load(self, column: Any) -> Any:
        # Invariant: the pickle has every column once, and its memo keeps it alive, so that ids are not reused.
        return self._lists.setdefault(id(column), SharedList(column))


def load_payload(layout: PayloadLayout, fds: list[int]) -> Any:
    """Return the program of a payload; closes the descriptors."""
    memory, *handles = fds
    head, *buffers = bytes_at(layout.pieces, memory, handles)
    os.close(memory)
    with received_handles(handles, layout.tracker):
        return _Unpickler(io.BytesIO(head.data), buffers).load()
