"""Shared memory for collated batches, so that they are sent without a copy. Torch would use files in /dev/shm."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from antifreeze.ipc import Outbox
from antifreeze.payload import when_imported

_LARGE = 1 << 15
_outboxes: list[Outbox] = []


def install(outbox: Outbox) -> None:
    """Allocate batches from the outbox, in our collate and in torch's, now or when torch is imported."""
    _outboxes[:] = [outbox]
    when_imported("torch.storage", _replace_storage)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialized array, in shared memory if it is large enough to benefit."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    lent = lend(nbytes)
    return np.empty(shape, dtype) if lent is None else lent.view(dtype).reshape(shape)


def lend(nbytes: int) -> npt.NDArray[np.uint8] | None:
    """Return shared memory if it is available and ``nbytes`` is large enough to benefit."""
    if not _outboxes or nbytes < _LARGE:
        return None
    try:
        return _outboxes[0].lend(nbytes)[:nbytes]
    except OSError:  # out of descriptors or memory: the batch is copied later
        return None


def _replace_storage() -> None:
    """Replace the function by which torch, and code copied from it, allocates the memory of a batch in a worker."""
    storage: Any = sys.modules["torch.storage"]

    def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        lent = lend(size) if str(device) == "cpu" else None
        torch: Any = sys.modules["torch"]
        return cls(size, device=device) if lent is None else torch.from_numpy(lent).untyped_storage()

    storage.UntypedStorage._new_shared = classmethod(_new_shared)
