"""Makes torch's ``default_collate`` write batches directly into shared memory in a worker."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from antifreeze.payload import when_imported
from antifreeze.worker._batch_memory import lend
from antifreeze.worker._numpy_collate import are_alike, stack_alike

_DTYPE = attrgetter("dtype")


def install() -> None:
    """Replace the functions by which torch stacks tensors and arrays, now or when it is imported."""
    when_imported("torch.utils.data._utils.collate", _replace)


def _replace() -> None:
    torch: Any = sys.modules["torch"]
    known: Any = sys.modules["torch.utils.data._utils.collate"].default_collate_fn_map
    for kind, collate in ((torch.Tensor, _Tensors), (np.ndarray, _Arrays)):
        known[kind] = collate(known[kind])


class CollateOwnTypes:
    """``default_collate`` with the types that the user's script has added to ``default_collate_fn_map``."""

    def __init__(self, own: Mapping[Any, Any]) -> None:
        self._own = dict(own)

    def __call__(self, batch: Any) -> Any:
        """Return the samples as one batch."""
        module: Any = importlib.import_module("torch.utils.data._utils.collate")
        return module.collate(batch, collate_fn_map={**module.default_collate_fn_map, **self._own})


class _Tensors:
    """Stacks tensors.

    In a worker, torch gives the batch the type of its first tensor; in the trainer, the common type of all. A batch
    must not depend on where it is made.
    """

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        torch: Any = sys.modules["torch"]
        first = batch[0]
        if first.is_nested or first.layout is not torch.strided:
            return self._before(batch, collate_fn_map=collate_fn_map)
        # Loops in Python would cost as much as stacking itself.
        alike = first.device.type == "cpu" and len(set(map(_DTYPE, batch))) == 1
        lent = lend(len(batch) * first.nbytes) if alike else None
        if lent is not None:
            out = torch.from_numpy(lent).view(first.dtype).reshape(len(batch), *first.shape)
            # Torch reports what it rejects itself, below, in its familiar messages.
            with contextlib.suppress(RuntimeError):
                return torch.stack(batch, 0, out=out)
        return torch.stack(batch, 0)


class _Arrays:
    """Stacks arrays of the same layout as arrays: torch converts each to a tensor, which takes five times as long."""

    def __init__(self, before: Any) -> None:
        self._before = before

    def __call__(self, batch: Any, *, collate_fn_map: Any = None) -> Any:
        if are_alike(batch):
            torch: Any = sys.modules["torch"]
            return torch.from_numpy(stack_alike(batch, batch[0].dtype))
        return self._before(batch, collate_fn_map=collate_fn_map)
