"""Mapped memory: anonymous memory that processes share, and files that another process maps instead of getting a copy.

Anonymous memory has no name, so it cannot collide, and is freed with its last owner. It is mapped from a file, too: the
file has no name, and the processes that share it have it open.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from antifreeze.core import regular_opener

Bytes = npt.NDArray[np.uint8]

_FAILED = ctypes.c_void_p(-1).value
_PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def create(name: str, nbytes: int) -> int:
    """Return a descriptor of fresh shared memory. The caller closes it."""
    if sys.platform != "linux":  # untested
        with tempfile.TemporaryFile() as file:
            file.truncate(max(nbytes, 1))
            return os.dup(file.fileno())
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(nbytes, 1))
        # A peer that truncates the file would kill the reader with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


Access = Literal["r", "w", "c"]
"""Read-only; shared writes; private copy-on-write."""

_HOW = {
    "r": (mmap.MAP_SHARED, mmap.PROT_READ),
    "w": (mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    # Few pages will be written, so no memory is reserved for all of them.
    "c": (mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0), mmap.PROT_READ | mmap.PROT_WRITE),
}


def map_bytes(fd: int, nbytes: int, access: Access = "w", start: int = 0) -> Bytes:
    """Return the memory of a descriptor, which may be closed afterwards; unmapped when the last view is gone.

    Not ``mmap.mmap``: it keeps a duplicate of the descriptor for each mapping, and a user who keeps a thousand batches
    would run out of descriptors.
    """
    flags, protection = _HOW[access]
    address = _libc.mmap(None, max(nbytes, 1), protection, flags, fd, start)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot map {nbytes:,} bytes of shared memory: {os.strerror(error)}")
    owner: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(owner, _libc.munmap, address, max(nbytes, 1)).atexit = False
    memory = np.frombuffer(owner, np.uint8)
    memory.flags.writeable = access != "r"
    return memory


def lease(memory: Bytes) -> Bytes:
    """Return an array over the memory that lives exactly as long as any view of it.

    NumPy collapses chains of views to the array that is based on foreign memory; going through a memoryview makes the
    returned array that one.
    """
    return np.frombuffer(memory.data, np.uint8)


def rounded(nbytes: int) -> int:
    """Return a segment size of at least ``nbytes``, rounded so that batches of similar size can reuse it."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step


# -- files ------------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ (\d+) +(/.*)")
_ACCESS = {"r": mmap.ACCESS_READ, "w": mmap.ACCESS_WRITE, "c": mmap.ACCESS_COPY}
_DEVICE = re.compile(r"/dev/(?!shm/|zero\b)")
_OURS = "/memfd:antifreeze-"
_MAX_TRANSFERRED = 100
"""Maximum number of unnamed files whose descriptors are sent: the kernel limits descriptors in transit."""


class FilePart(NamedTuple):
    """A range of a mapped file."""

    path: str
    identity: tuple[int, int]
    """Device and inode: a file can be replaced by another one of the same name."""
    start: int
    nbytes: int
    access: Access
    handle: int = -1
    """Index of the file's descriptor among those sent along, if it has no name; otherwise -1."""


class _Mapping(NamedTuple):
    begin: int
    end: int
    modes: str
    start: int
    number: int
    path: str

    @property
    def is_written_by_others(self) -> bool:
        """True if writes are visible to all processes that have it mapped.

        Our batches do not count, nor memory that a driver provides: they belong to one owner.
        """
        is_lent = self.path.startswith(_OURS) or bool(_DEVICE.match(self.path))
        return self.modes[1] == "w" and self.modes[3] == "s" and not is_lent


class Mappings:
    """A snapshot of the files that this process has mapped.

    ``hand`` takes the descriptor of an unnamed file, to be sent along, and returns its index.
    """

    def __init__(self, hand: Callable[[int], int] | None = None) -> None:
        text = Path("/proc/self/maps").read_text(errors="surrogateescape") if sys.platform == "linux" else ""
        found = [match.groups() for match in map(_LINE.fullmatch, text.splitlines()) if match]
        self._mappings = [
            _Mapping(int(begin, 16), int(end, 16), modes, int(start, 16), int(number), path.replace(r"\012", "\n"))
            for begin, end, modes, start, number, path in found
        ]
        self.any_shared = any(mapping.is_written_by_others for mapping in self._mappings)
        """Whether ``is_shared`` can return True at all."""
        self._hand, self._handed = hand, dict[tuple[int, str], tuple[int, os.stat_result]]()

    def is_shared(self, memory: Bytes) -> bool:
        """Return True if several processes can write to the memory: a copy of it would not be equivalent."""
        mapping = self._mapping(memory) if self.any_shared else None
        return mapping is not None and mapping.is_written_by_others

    def part(self, memory: Bytes) -> FilePart | None:
        """Return the range of a file that backs the memory; None if there is none, or its content has changed."""
        mapping, nbytes = self._mapping(memory), len(memory)
        if mapping is None or mapping.path.startswith(_OURS):
            return None
        start = mapping.start + memory.ctypes.data - mapping.begin
        with contextlib.suppress(OSError):
            handle, status = self._file(mapping)
            if status.st_ino != mapping.number or start + nbytes > status.st_size:
                return None
            is_private = mapping.modes[1] == "w" and mapping.modes[3] == "p"
            if is_private and not _is_untouched(mapping):
                return None
            is_shared = mapping.modes[1] == "w" and mapping.modes[3] == "s"
            access: Access = "r" if not memory.flags.writeable else "w" if is_shared else "c"
            return FilePart(mapping.path, (status.st_dev, status.st_ino), start, nbytes, access, handle)
        return None

    def _mapping(self, memory: Bytes) -> _Mapping | None:
        address = memory.ctypes.data
        index = bisect.bisect_right(self._mappings, address, key=lambda mapping: mapping.begin) - 1
        return self._mappings[index] if index >= 0 and address + len(memory) <= self._mappings[index].end else None

    def _file(self, mapping: _Mapping) -> tuple[int, os.stat_result]:
        """Return the index of the file's descriptor, or -1 if it has a name, and its status.

        Raises ``OSError`` if the file cannot be accessed.
        """
        key = (mapping.number, mapping.path)
        if key not in self._handed:
            try:
                return -1, os.stat(mapping.path)  # noqa: PTH116  fails for one that was deleted: it is in its name
            except FileNotFoundError:
                if self._hand is None or len(self._handed) >= _MAX_TRANSFERRED:
                    raise
            fd = _open_here(mapping)
            self._handed[key] = (self._hand(fd), os.fstat(fd))
        return self._handed[key]


def _open_here(mapping: _Mapping) -> int:
    """Return a descriptor of this process by which the file can be mapped in the same way."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  numbers
        with contextlib.suppress(OSError):
            fd, way = int(name), Path("/proc/self/fd", name)
            is_it = os.fstat(fd).st_ino == mapping.number and str(way.readlink()) == mapping.path
            can_write = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            if is_it and (can_write or mapping.modes[1:4:2] != "ws"):
                return fd
    raise FileNotFoundError(errno.ENOENT, "the mapped file is not open in this process", mapping.path)


def _is_untouched(mapping: _Mapping) -> bool:
    """Return True if a private mapping was never written to."""
    text = Path("/proc/self/smaps").read_text(errors="surrogateescape")
    _, _, rest = text.partition(f"\n{mapping.begin:x}-{mapping.end:x} ")
    found = re.search(r"^Anonymous: +(\d+) kB", rest, re.MULTILINE)
    return found is not None and found[1] == "0"


def map_part(part: FilePart, handles: Sequence[int] = ()) -> Bytes:
    """Map a range of a file; ``handles`` are the descriptors that were sent along."""
    fd = _opened(part) if part.handle < 0 else os.dup(handles[part.handle])
    try:
        page = part.start - part.start % mmap.ALLOCATIONGRANULARITY
        nbytes = part.start - page + part.nbytes
        return map_bytes(fd, nbytes, part.access, page)[part.start - page :]
    finally:
        os.close(fd)


def _opened(part: FilePart) -> int:
    fd = regular_opener(part.path, os.O_RDWR if part.access == "w" else os.O_RDONLY)
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) != part.identity:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "the file that the dataset has mapped was replaced", part.path)
    return fd


# -- objects over a mapped file --------------------------------------------------------------------------------


def reduce_memmap(array: Any) -> tuple[Any, ...]:
    """Return how to rebuild a NumPy memmap or a view of one; its memory is sent like that of an array."""
    plain = array.view(np.ndarray)
    ends = [(count - 1) * stride for count, stride in zip(plain.shape, plain.strides, strict=True)]
    first = sum(end for end in ends if end < 0)
    nbytes = sum(map(abs, ends)) + plain.itemsize
    memory = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(plain.ctypes.data + first), np.uint8)
    memory.flags.writeable = plain.flags.writeable
    facts = {name: getattr(array, name, None) for name in ("filename", "offset", "mode")}
    return rebuild_memmap, (memory, plain.dtype, plain.shape, plain.strides, -first, facts)


def rebuild_memmap(
    memory: Bytes, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int, facts: dict[str, Any]
) -> Any:
    """Return the array over its memory."""
    array: Any = np.ndarray(shape, dtype, memory.data, start, strides).view(np.memmap)
    for name, value in facts.items():
        setattr(array, name, value)
    return array


def reduce_mmap(mapped: mmap.mmap) -> tuple[Any, ...] | None:
    """Return how to map a file again; None if ``mapped`` is not backed by a file."""
    memory = np.frombuffer(mapped, np.uint8)
    part = Mappings().part(memory) if len(memory) else None
    return None if part is None else (rebuild_mmap, (part, mapped.tell()))


def rebuild_mmap(part: FilePart, position: int) -> mmap.mmap:
    """Return the file, mapped."""
    fd = _opened(part)
    try:
        mapped = mmap.mmap(fd, part.nbytes, access=_ACCESS[part.access], offset=part.start)
    finally:
        os.close(fd)
    mapped.seek(position)
    return mapped
