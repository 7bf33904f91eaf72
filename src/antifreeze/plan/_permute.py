"""Permutations computed from counters: each can be computed at any time, in any process, on any machine."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

_WORD = (1 << 64) - 1


class RandomStream(enum.IntEnum):
    """What random numbers are for, so that no two uses share random numbers."""

    FRAGMENTS = 1
    ROUND = 2
    MIX = 3
    SPLIT = 4


def _generator(seed: int, epoch: int, use: RandomStream, index: int, lane: int) -> np.random.Philox:
    # As unsigned arrays: NumPy would convert a list with a number above 2**63 to floats, and round it.
    key = np.array([seed & _WORD, epoch & _WORD], np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, int(use), index, lane], np.uint64))


def permutation(size: int, *, seed: int, epoch: int, use: RandomStream, index: int = 0, lane: int = 0) -> Int64Array:
    """Return a permutation of ``range(size)`` that depends on the arguments alone.

    Philox is counter-based and its raw stream is fixed by specification. NumPy's ``shuffle`` and ``permutation``
    are not: they may change between releases, and a run could not be resumed.
    """
    generator = _generator(seed, epoch, use, index, lane)
    raw = generator.random_raw(size) if size else np.empty(0, np.uint64)
    # Sorting values that carry their own index in the low bits gives the permutation itself. Every key differs,
    # so no sorting algorithm can disagree with another about ties, and sorting is several times faster than argsort.
    bits = np.uint64(max(size - 1, 1).bit_length())
    keys = (raw >> bits << bits) | np.arange(size, dtype=np.uint64)
    keys.sort()
    return (keys & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
