"""The last step of a batch, in torch: tensors that share memory with the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory

from antifreeze.datasets._to_batch import (
    Array,
    Finish,
    assemble,
    check_keys,
    check_shapes,
    inner_key,
    padded,
    padding_of,
    row_of,
)
from antifreeze.formats import Leaf, LeafKind

if TYPE_CHECKING:
    from antifreeze.worker import CollateOwnTypes

__all__ = ["collate", "finisher", "parted", "pin", "row_of", "with_own_types"]

_TICKS = np.dtype(np.int64)


def finisher(leaves: Sequence[Leaf], pad: object | Mapping[str, object] | None = None) -> Finish:
    """Return a function from a block to a batch of tensors.

    DENSE leaves become tensors over the same memory. TIME leaves become int64 ticks of their unit since 1970-01-01
    (dates: days) or since midnight. RAGGED leaves become lists of tensors, or one padded tensor where ``pad`` has
    a value for them. OBJECT leaves become lists: torch has no texts.
    """
    return assemble(leaves, [_make(leaf, padding_of(leaf, leaves, pad)) for leaf in leaves])


def _ticks(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.view(_TICKS))


def _tensors(value: Any, depth: int, tensor: Any) -> list[Any]:
    if depth > 1:
        return [_tensors(part, depth - 1, tensor) for part in value]
    return [tensor(part) for part in value]


def _make(leaf: Leaf, padding: Any) -> Any:
    tensor = _ticks if leaf.dtype.kind in "mM" else torch.from_numpy
    if leaf.kind is LeafKind.OBJECT:
        # Not list(): for an object array tolist() is eight times as fast, and the same.
        return np.ndarray.tolist
    if leaf.kind is not LeafKind.RAGGED:
        return tensor
    if padding is not None:
        return lambda rows: tensor(padded(rows, leaf, padding))
    return lambda rows: _tensors(rows, leaf.depth, tensor)


def parted(batch: Any) -> Any:
    """Return a batch with lists of tensors in place of tensors: all rows of one are had in the time of three."""
    if isinstance(batch, torch.Tensor):
        return batch.unbind()
    return {key: parted(value) for key, value in batch.items()} if isinstance(batch, dict) else batch


def collate(rows: Sequence[Any]) -> Any:
    """Return torch's ``default_collate`` of the rows; rows that do not fit together are named."""
    try:
        return default_collate(list(rows))
    except (RuntimeError, KeyError, TypeError, ValueError):
        # Torch says neither which key nor which rows; if the search below finds nothing, its error is raised.
        _explain(rows, "")
        raise


def _explain(rows: Sequence[Any], key: str) -> None:
    first = rows[0]
    if isinstance(first, Mapping):
        check_keys(rows, key)
        for name in first:
            _explain([row[name] for row in rows], inner_key(key, name))
    elif isinstance(first, tuple | list):
        check_keys(rows, key)
        for index, column in enumerate(zip(*rows, strict=True)):
            _explain(column, inner_key(key, index))
    elif isinstance(first, torch.Tensor | np.ndarray):
        check_shapes([tuple(np.shape(row)) for row in rows], key)


def with_own_types() -> CollateOwnTypes | None:
    """Return a collate function that knows the types that the user has added to torch's, or None if there are none."""
    from antifreeze.worker import CollateOwnTypes

    known: Mapping[Any, Any] = default_collate_fn_map
    own = {kind: function for kind, function in known.items() if _is_users(function)}
    return CollateOwnTypes(own) if own else None


def _is_users(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return module != default_collate.__module__ and not module.startswith("antifreeze.")


def _can_pin() -> bool:
    # torch.accelerator came with torch 2.6.
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def pin(batch: Any) -> Any:
    """Return the batch with its tensors in pinned memory; the batch itself if there is no accelerator."""
    return pin_memory(batch) if _can_pin() else batch  # type: ignore[no-untyped-call]
