"""Torch's ``default_collate`` and ``default_convert``, also for processes in which torch is not loaded.

A worker process imports torch only if it has to: that takes a second and 150 MB. What most datasets return (arrays of
one dtype and shape, numbers of one type, strings, and dicts, lists and tuples of these) is collated here, and whatever
would be a tensor is an ``AsTensor`` around a NumPy array. Everything else, and everything that torch rejects, is left
to torch, which is imported for it: a batch, or an error, never depends on whether torch was loaded.

Where torch is loaded, its own function is used; in a worker, that stacks directly into shared memory, so that batches
are sent without a copy. Torch itself would use files in /dev/shm.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from array import array
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antifreeze.ipc import Outbox, tensor_of
from antifreeze.payload import when_imported

TENSOR_DTYPES = "?bBhHiIlLqQefdFD"
"""The dtypes that torch accepts, as NumPy's one-letter codes: it has two types of 64 bits, and torch takes both."""
_dtype_of = attrgetter("dtype")
_LARGE = 1 << 15
_outboxes: list[Outbox] = []


class AsTensor:
    """An array that becomes a torch tensor at the receiver."""

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"AsTensor({self.array!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor_of, (self.array,)


def default_collate(samples: Sequence[Any]) -> Any:
    """Return the samples as one batch, as torch's ``default_collate`` does."""
    # Not imported yet, or being imported by another thread: then it has no such function.
    collate = getattr(sys.modules.get("torch.utils.data"), "default_collate", collate_arrays)
    return collate(samples)


def default_convert(sample: Any) -> Any:
    """Return a sample with its arrays as tensors, as torch's ``default_convert`` does."""
    convert = getattr(sys.modules.get("torch.utils.data"), "default_convert", convert_arrays)
    return convert(sample)


def collate_arrays(samples: Sequence[Any]) -> Any:
    """Return the samples as one batch, with ``AsTensor`` where torch returns a tensor."""
    kinds = set(map(type, samples))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is np.ndarray and are_alike(samples):
        return AsTensor(stack_alike(samples))
    if kind is str or kind is bytes:
        return samples
    if kind is dict:
        return {key: collate_arrays([sample[key] for sample in samples]) for key in samples[0]}
    if kind is not None and issubclass(kind, list | tuple) and len(set(map(len, samples))) == 1:
        if kind is list or kind is tuple:  # torch returns a list for both
            return [collate_arrays(column) for column in zip(*samples, strict=True)]
        if hasattr(kind, "_fields"):
            return kind(*map(collate_arrays, zip(*samples, strict=True)))
    found = _numbers(kind, samples)
    return _torch_data().default_collate(samples) if found is None else AsTensor(found)


def convert_arrays(sample: Any) -> Any:
    """Return the sample with ``AsTensor`` around its arrays; everything else is unchanged."""
    kind = type(sample)
    if kind is np.ndarray and are_alike([sample]):
        return AsTensor(sample)
    if kind is dict:
        return {key: convert_arrays(value) for key, value in sample.items()}
    if kind is list or kind is tuple:
        return [convert_arrays(member) for member in sample]
    is_container = isinstance(sample, Mapping | Sequence) and not isinstance(sample, str | bytes)
    if not is_container and kind.__module__ != "numpy":
        return sample
    found = _numbers(kind, [sample]) if issubclass(kind, np.generic) else None
    return _torch_data().default_convert(sample) if found is None else AsTensor(found.reshape(()))


def _torch_data() -> Any:
    return importlib.import_module("torch.utils.data")


def _numbers(kind: type | None, samples: Sequence[Any]) -> NDArray[Any] | None:
    """Return numbers of one type as an array; None if they are no numbers, or torch has to decide."""
    if kind is int:
        try:
            return np.array(array("q", samples))
        except OverflowError:
            return None
    if kind is float:
        return np.array(array("d", samples))
    if kind is bool:
        return np.array(samples, np.bool_)
    if kind is None or not issubclass(kind, np.number | np.bool_) or kind is np.uint64:  # which torch rejects
        return None
    dtype = samples[0].dtype
    return np.array(samples, dtype) if dtype.char in TENSOR_DTYPES else None


def are_alike(samples: Sequence[Any]) -> bool:
    """Return True if all are plain arrays of one shape and dtype that torch accepts as they are."""
    first = samples[0]
    if type(first) is not np.ndarray or not _is_accepted(first):
        return False
    shape, strides, dtype = first.shape, first.strides, first.dtype
    return all(
        type(each) is np.ndarray
        and each.dtype == dtype
        and each.shape == shape
        and (each.strides == strides or _is_accepted(each))
        for each in samples
    )


def _is_accepted(found: NDArray[Any]) -> bool:
    """True if torch makes a tensor of an array: it rejects negative strides and foreign byte orders, for example."""
    if found.dtype.char not in TENSOR_DTYPES or not found.dtype.isnative:
        return False
    return all(stride >= 0 and stride % found.itemsize == 0 for stride in found.strides)


def lend(nbytes: int) -> NDArray[np.uint8] | None:
    """Return shared memory if it is available and ``nbytes`` is large enough to benefit."""
    if not _outboxes or nbytes < _LARGE:
        return None
    try:
        return _outboxes[0].lend(nbytes)[:nbytes]
    except OSError:  # out of descriptors or memory: the batch is copied later
        return None


def stack_alike(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of one shape and dtype as one array."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    lent = lend(len(arrays) * arrays[0].nbytes)
    whole = np.empty((len(arrays), *shape), dtype) if lent is None else lent.view(dtype).reshape(-1, *shape)
    if not shape:
        for index, number in enumerate(arrays):
            whole[index] = number
    elif whole.size:
        # Not np.stack: it takes four times as long for small arrays.
        np.concatenate(arrays, out=whole.reshape(-1, *shape[1:]))
    return whole


# -- with torch ----------------------------------------------------------------------------------------------------


class CollateOwnTypes:
    """``default_collate`` with the types that the user's script has added to ``default_collate_fn_map``."""

    def __init__(self, own: Mapping[Any, Any]) -> None:
        self._own = dict(own)

    def __call__(self, batch: Any) -> Any:
        """Return the samples as one batch."""
        module: Any = importlib.import_module("torch.utils.data._utils.collate")
        return module.collate(batch, collate_fn_map={**module.default_collate_fn_map, **self._own})


def install(outbox: Outbox) -> None:
    """Allocate batches from the outbox, in our collate and in torch's, now or when torch is imported."""
    _outboxes[:] = [outbox]
    when_imported("torch.storage", _replace_storage)
    when_imported("torch.utils.data._utils.collate", _replace_collate)


def _replace_storage() -> None:
    """Replace the function by which torch, and code copied from it, allocates the memory of a batch in a worker."""
    storage: Any = sys.modules["torch.storage"]

    def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        lent = lend(size) if str(device) == "cpu" else None
        torch: Any = sys.modules["torch"]
        return cls(size, device=device) if lent is None else torch.from_numpy(lent).untyped_storage()

    storage.UntypedStorage._new_shared = classmethod(_new_shared)


def _replace_collate() -> None:
    """Replace the functions by which torch stacks tensors and arrays."""
    torch: Any = sys.modules["torch"]
    known: Any = sys.modules["torch.utils.data._utils.collate"].default_collate_fn_map
    for kind, collate in ((torch.Tensor, _stack_tensors), (np.ndarray, _stack_arrays)):
        known[kind] = functools.partial(collate, known[kind])


def _stack_tensors(before: Any, batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack tensors.

    In a worker, torch gives the batch the type of its first tensor; in the trainer, the common type of all. A batch
    must not depend on where it is made.
    """
    torch: Any = sys.modules["torch"]
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return before(batch, collate_fn_map=collate_fn_map)
    # Loops in Python would cost as much as stacking itself.
    alike = first.device.type == "cpu" and len(set(map(_dtype_of, batch))) == 1
    lent = lend(len(batch) * first.nbytes) if alike else None
    if lent is not None:
        out = torch.from_numpy(lent).view(first.dtype).reshape(len(batch), *first.shape)
        # Torch reports what it rejects itself, below, in its familiar messages.
        with contextlib.suppress(RuntimeError):
            return torch.stack(batch, 0, out=out)
    return torch.stack(batch, 0)


def _stack_arrays(before: Any, batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack arrays as arrays if they are alike: torch converts each to a tensor, which takes five times as long."""
    if are_alike(batch):
        torch: Any = sys.modules["torch"]
        return torch.from_numpy(stack_alike(batch))
    return before(batch, collate_fn_map=collate_fn_map)
