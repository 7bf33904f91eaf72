"""Memory that is used again when the last tensor over it dies."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

_SMALL = 1 << 20
_PAGE = 4096


class Arena:
    """Lends arrays, and lends their memory again once nobody holds it.

    Fresh memory is what makes large batches slow: touching a page for the first time costs more than copying it.

    Guarantees: memory is lent again only after the lent array, and every array or tensor that was made from it without
    a copy, are gone. The free memory that is kept is bounded. No lock is taken: the collector may give memory back in
    any thread and at any instruction, also in the middle of ``array``.
    """

    def __init__(self, kept_nbytes: int) -> None:
        self._kept_nbytes = kept_nbytes
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array of undefined content."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if dtype.hasobject or nbytes < _SMALL:
            return np.empty(shape, dtype)
        # Rounds differ by a few rows; memory of the next megabyte up fits them all.
        size = -(-nbytes // _SMALL) * _SMALL
        free = self._free.setdefault(size, deque(maxlen=max(2, self._kept_nbytes // size)))
        try:
            owner = free.pop()
        except IndexError:
            owner = _aligned(size)
        # NumPy shortens chains of views to the array that stands on foreign memory. Going through a memoryview makes
        # ``lent`` that array: it lives exactly as long as any view of it.
        lent: npt.NDArray[Any] = np.frombuffer(owner.data, np.uint8)
        weakref.finalize(lent, free.append, owner).atexit = False
        return lent[:nbytes].view(dtype).reshape(shape)

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of a large array; a small one as it is."""
        if array.nbytes < _SMALL:
            return array
        copied = self.array(array.shape, array.dtype)
        copied[...] = array
        return copied


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return fresh memory that begins with a page: rows that begin with a cache line are copied a fifth faster."""
    raw = np.empty(nbytes + _PAGE, np.uint8)
    begin = -raw.ctypes.data % _PAGE
    return raw[begin : begin + nbytes]
