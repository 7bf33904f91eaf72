"""Anonymous shared memory: it has no name, so it cannot collide, and is freed with its last owner."""

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
    """Return a descriptor of fresh shared memory. The caller closes it."""
    if sys.platform != "linux":
        return _create_elsewhere(nbytes)
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(nbytes, 1))
        # A peer that truncates the file would kill the reader with SIGBUS.
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
