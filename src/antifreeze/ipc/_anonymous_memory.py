"""Anonymous shared memory: it has no name, so it cannot collide, and it goes with its last owner."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
import tempfile
import weakref
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_FAILED = ctypes.c_void_p(-1).value
_PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def create(name: str, nbytes: int) -> int:
    """Return a descriptor of fresh shared memory. Whoever calls this closes it."""
    if sys.platform != "linux":
        return _create_elsewhere(nbytes)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(nbytes, 1))
        # A peer that cuts the file short would end the reader with SIGBUS.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _create_elsewhere(nbytes: int) -> int:
    """Return a descriptor of an unlinked temporary file; untested, for systems without memfd."""
    with tempfile.TemporaryFile() as file:
        file.truncate(max(nbytes, 1))
        return os.dup(file.fileno())


Access = Literal["r", "w", "c"]
"""To read; to write for all to see; to write into a copy of one's own."""

_HOW = {
    "r": (mmap.MAP_SHARED, mmap.PROT_READ),
    "w": (mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    # Few pages will be written to, so no memory is set aside for all of them.
    "c": (mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0), mmap.PROT_READ | mmap.PROT_WRITE),
}


def map_bytes(fd: int, nbytes: int, access: Access = "w", start: int = 0) -> Bytes:
    """Return the memory behind a descriptor, which may be closed afterwards; unmapped when the last view dies.

    Not ``mmap.mmap``: it keeps a descriptor of its own for each mapping, and a user who keeps a thousand batches would
    run out of them.
    """
    flags, protection = _HOW[access]
    address = _libc.mmap(None, max(nbytes, 1), protection, flags, fd, start)
    if address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, f"mapping {nbytes:,} bytes of shared memory: {os.strerror(error)}")
    owner: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(owner, _libc.munmap, address, max(nbytes, 1)).atexit = False
    memory = np.frombuffer(owner, np.uint8)
    memory.flags.writeable = access != "r"
    return memory


def lease(memory: Bytes) -> Bytes:
    """Return an array over the memory that lives exactly as long as any view of it.

    NumPy shortens chains of views to the array that stands on foreign memory; going through a memoryview makes the
    returned array that one.
    """
    return np.frombuffer(memory.data, np.uint8)


def rounded(nbytes: int) -> int:
    """Return a size for a segment of at least so many bytes: batches differ by a little, and should fit again."""
    step = max(_PAGE, 1 << max(0, nbytes.bit_length() - 3))
    return -(-nbytes // step) * step
