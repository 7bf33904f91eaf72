"""Pickles and rebuilds torch tensors. Nothing here imports torch before there is a tensor.

Invariant: the path of this module and the names of its functions never change. They are part of every pickled batch,
and so of the fingerprints in saved states: a state from before a move could not be resumed after it.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any

import numpy as np


def is_tensor(value: object) -> bool:
    """Return True for a tensor whose memory can be sent as is: on the CPU, dense, of torch's own class."""
    if type(value).__name__ not in ("Tensor", "Parameter"):
        return False
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    tensor: Any = value
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    plain = plain and not tensor.is_quantized and not tensor.is_nested
    # Conjugate and negative views are lazy: their memory does not hold their values.
    return bool(plain and (tensor.is_leaf or not tensor.requires_grad) and not tensor.is_conj() and not tensor.is_neg())


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:
    """Return how to rebuild a tensor; its memory is sent out of band."""
    torch: Any = sys.modules["torch"]
    if type(tensor) is torch.Tensor and not tensor.requires_grad and tensor.is_contiguous():
        # The common case, on a path that every batch takes.
        try:
            array = tensor.numpy()
        except TypeError:  # a dtype that NumPy does not have
            pass
        else:
            if array.size:
                return rebuild_plain, (pickle.PickleBuffer(array), array.dtype.str, array.shape)
    plain = tensor.detach()
    order: tuple[int, ...] | None = None
    if not plain.is_contiguous():
        # A permuted tensor (channels last, a transpose) keeps its strides; anything else is copied.
        by_stride = sorted(range(plain.dim()), key=lambda dim: -plain.stride(dim))
        turned = plain.permute(by_stride)
        if turned.is_contiguous():
            plain, order = turned, tuple(int(i) for i in np.argsort(by_stride))
        else:
            plain = plain.contiguous()
    # An empty tensor may have any strides, and torch checks them.
    raw: Any = plain.reshape(-1).view(torch.uint8).numpy() if plain.numel() else np.empty(0, np.uint8)
    dtype = str(plain.dtype).removeprefix("torch.")
    leaf = (type(tensor) is torch.nn.Parameter, bool(tensor.requires_grad))
    return rebuild_tensor, (pickle.PickleBuffer(raw), dtype, tuple(plain.shape), order, leaf)


def rebuild_plain(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor over the buffer, for a dtype that NumPy has."""
    torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
    return torch.from_numpy(np.frombuffer(buffer, dtype).reshape(shape))


def rebuild_tensor(
    buffer: Any, dtype: str, shape: tuple[int, ...], order: tuple[int, ...] | None, leaf: tuple[bool, bool]
) -> Any:
    """Return a tensor over the buffer."""
    torch: Any = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    raw = np.frombuffer(buffer, np.uint8)
    tensor = torch.from_numpy(raw).view(kind).reshape(shape) if len(raw) else torch.empty(shape, dtype=kind)
    if order is not None:
        tensor = tensor.permute(order)
    is_parameter, requires_grad = leaf
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor


def tensor_of(array: Any) -> Any:
    """Return a tensor over an array's memory."""
    torch: Any = sys.modules.get("torch") or importlib.import_module("torch")
    return torch.from_numpy(array if array.flags.writeable else array.copy())
