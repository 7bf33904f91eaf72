"""Memory that is reused when the last tensor over it is gone."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 20
_PAGE = 4096


class Arena:
    """Allocates arrays, and reuses their memory once nothing references it.

    Fresh memory is what makes large batches slow: touching a page for the first time costs more than copying it.

    Guarantees: memory is reused only after the array, and every array or tensor made from it without a copy, are gone.
    The free memory that is kept is bounded. No lock is taken: the garbage collector may return memory in any thread and
    at any instruction, even during ``array``.
    """

    def __init__(self, kept_nbytes: int) -> None:
        self._kept_nbytes = kept_nbytes
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if dtype.hasobject or nbytes < _SMALL:
            return np.empty(shape, dtype)
        # Rounds differ by a few rows; rounding up to the next megabyte fits them all.
        size = -(-nbytes // _SMALL) * _SMALL
        free = self._free.setdefault(size, deque(maxlen=max(2, self._kept_nbytes // size)))
        try:
            owner = free.pop()
        except IndexError:
            owner = _aligned(size)
        # NumPy collapses chains of views to the array that is based on foreign memory. Going through a memoryview makes
        # ``lent`` that array: it lives exactly as long as any view of it.
        lent: npt.NDArray[Any] = np.frombuffer(owner.data, np.uint8)
        weakref.finalize(lent, free.append, owner).atexit = False
        return lent[:nbytes].view(dtype).reshape(shape)

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of a large array; return a small one unchanged."""
        if array.nbytes < _SMALL:
            return array
        copied = self.array(array.shape, array.dtype)
        copied[...] = array
        return copied


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return fresh page-aligned memory: rows that start at a cache line are copied a fifth faster."""
    raw = np.empty(nbytes + _PAGE, np.uint8)
    begin = -raw.ctypes.data % _PAGE
    return raw[begin : begin + nbytes]
