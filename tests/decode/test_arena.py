"""Lent memory is lent again when the last tensor over it dies, and never before."""

from __future__ import annotations

import gc

import numpy as np
import torch

from antifreeze.decode import Arena

LARGE = (1024, 1024)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_memory_comes_back_when_the_array_dies() -> None:
    """Fresh memory is what makes large batches slow."""
    arena = Arena(64 << 20)
    first = arena.array(LARGE, np.dtype(np.int32))
    where = address(first)
    del first

    assert address(arena.array(LARGE, np.dtype(np.int32))) == where


def test_memory_does_not_come_back_while_a_tensor_of_a_slice_lives() -> None:
    """The user may keep any part of a batch in any form."""
    arena = Arena(64 << 20)
    lent = arena.array(LARGE, np.dtype(np.int32))
    where = address(lent)
    lent[:] = 7
    kept = torch.from_numpy(lent[10:20])[3].view(32, 32).numpy()[:2]
    del lent
    gc.collect()
    other = arena.array(LARGE, np.dtype(np.int32))
    other[:] = 9

    assert address(other) != where
    assert (kept == 7).all()
    del kept
    assert address(arena.array(LARGE, np.dtype(np.int32))) == where


def test_arrays_of_nearly_one_size_share_memory() -> None:
    """Rounds of an epoch differ by a few rows."""
    arena = Arena(64 << 20)
    first = arena.array((1000, 1024), np.dtype(np.int32))
    where = address(first)
    del first

    assert address(arena.array((1003, 1024), np.dtype(np.int32))) == where


def test_free_memory_that_is_kept_is_bounded() -> None:
    """A user who kept a hundred batches and drops them all gets the memory back."""
    arena = Arena(16 << 20)
    many = [arena.array(LARGE, np.dtype(np.int32)) for _ in range(40)]
    del many

    assert sum(len(free) for free in arena._free.values()) == 4


def test_small_arrays_and_objects_are_plain() -> None:
    """Strings cannot stand in lent memory, and small arrays are not worth it."""
    arena = Arena(16 << 20)

    assert arena.array((3,), np.dtype(object)).dtype == object
    assert arena.array((3,), np.dtype(np.int8)).base is None
