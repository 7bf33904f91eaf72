"""Batches are collated straight into the memory that they travel in; torch's own way would use files in /dev/shm."""

from __future__ import annotations

import contextlib
import sys
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from antifreeze.child._when_imported import when_imported
from antifreeze.transport import Outbox

_LARGE = 1 << 15
_DTYPE = attrgetter("dtype")
_outboxes: list[Outbox] = []


def install(outbox: Outbox) -> None:
    """Have collating write into the outbox: our own, and torch's now or when it is imported."""
    _outboxes[:] = [outbox]
    when_imported("torch.storage", _replace_storage)
    when_imported("torch.utils.data._utils.collate", _replace_collate)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array of undefined content, in memory that can be sent without a copy where that is worth it."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    lent = _lend(nbytes)
    return np.empty(shape, dtype) if lent is None else lent.view(dtype).reshape(shape)


def _lend(nbytes: int) -> npt.NDArray[np.uint8] | None:
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
        lent = _lend(size) if str(device) == "cpu" else None
        torch: Any = sys.modules["torch"]
        return cls(size, device=device) if lent is None else torch.from_numpy(lent).untyped_storage()

    storage.UntypedStorage._new_shared = classmethod(_new_shared)


def _replace_collate() -> None:
    """Replace how ``default_collate`` stacks tensors.

    In a worker, torch's own way gives the batch the type of its first tensor; in the trainer, the type of them all. A
    batch must not depend on where it is made.
    """
    torch: Any = sys.modules["torch"]
    known: Any = sys.modules["torch.utils.data._utils.collate"].default_collate_fn_map
    known[torch.Tensor] = _Stack(known[torch.Tensor])


class _Stack:
    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        torch: Any = sys.modules["torch"]
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            return self._before(batch, collate_fn_map=collate_fn_map)
        # Loops in Python would cost as much as stacking itself.
        alike = first.device.type == "cpu" and len(set(map(_DTYPE, batch))) == 1
        lent = _lend(len(batch) * first.nbytes) if alike else None
        if lent is not None:
            out = torch.from_numpy(lent).view(first.dtype).reshape(len(batch), *first.shape)
            # What torch refuses, or does not stack into given memory, is its own to say, in words that people know.
            with contextlib.suppress(RuntimeError):
                return torch.stack(batch, 0, out=out)
        return torch.stack(batch, 0)
