"""Memory that batches travel in, lent to whoever collates them; torch's own way would use files in /dev/shm."""

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
    """Lend from the outbox: to our own collating, and to torch's, now or when it is imported."""
    _outboxes[:] = [outbox]
    when_imported("torch.storage", _replace_storage)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array of undefined content, in memory that can be sent without a copy where that is worth it."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    lent = lend(nbytes)
    return np.empty(shape, dtype) if lent is None else lent.view(dtype).reshape(shape)


def lend(nbytes: int) -> npt.NDArray[np.uint8] | None:
    """Return memory that can be sent without a copy, where that is worth it and there is any."""
    if not _outboxes or nbytes < _LARGE:
        return None
    try:
        return _outboxes[0].lend(nbytes)[:nbytes]
    except OSError:  # no descriptor, no memory: it can be copied later
        return None


def _replace_storage() -> None:
    """Replace what torch, and code that was copied from it, calls in a worker for the memory of a batch."""
    storage: Any = sys.modules["torch.storage"]

    def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        lent = lend(size) if str(device) == "cpu" else None
        torch: Any = sys.modules["torch"]
        return cls(size, device=device) if lent is None else torch.from_numpy(lent).untyped_storage()

    storage.UntypedStorage._new_shared = classmethod(_new_shared)
