"""``torch.as_tensor`` and ``torch.stack`` as NumPy arrays, for processes in which torch is not loaded.

Each rule below is torch's, odd ones included (64-bit unsigned scalars are rejected, arrays of them are not): a batch
must not depend on whether something in the worker process happens to have imported torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antifreeze.ipc import tensor_of
from antifreeze.worker._batch_memory import empty

Array = NDArray[Any]
Dtype = np.dtype[Any]

_BOOL, _LONG, _UNSIGNED = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint64)
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_COMPLEX, _DOUBLE_COMPLEX = np.dtype(np.complex64), np.dtype(np.complex128)

_NAMES = (
    "float64, float32, float16, complex64, complex128, int64, int32, int16, int8, uint64, uint32, uint16, uint8, bool"
)
_KNOWN = "?bBhHiIlLqQefdFD"  # as NumPy's one-letter codes: it has two types of 64 bits, and torch takes both
_PLAIN = {bool: _BOOL, int: _LONG, float: _FLOAT, complex: _COMPLEX}
_RANKS = "buifc".index


class AsTensor:
    """An array that becomes a torch tensor at the receiver."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"AsTensor({self.array!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor_of, (self.array,)

    # A tensor of one element can be put into an ``array.array``, and torch's collate makes use of it.
    def __float__(self) -> float:
        if self.array.size != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return float(self.array.item())

    def __index__(self) -> int:
        if self.array.size != 1 or self.array.dtype.kind not in "bui":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.array.item())


def check_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype in the machine's byte order, or raise as torch does if it has no such type."""
    if dtype.char not in _KNOWN:
        kind = f"{dtype.type.__module__}.{dtype.type.__name__}"
        raise TypeError(f"can't convert np.ndarray of type {kind}. The only supported types are: {_NAMES}.")
    return dtype.newbyteorder("=")


def promote(one: Dtype, other: Dtype) -> Dtype:
    """Return the dtype to which torch promotes both; unlike in NumPy, an integer never widens a float."""
    if one == other:
        return one
    if any(_is_wide_unsigned(a) and b.kind != "f" for a, b in ((one, other), (other, one))):
        raise RuntimeError(
            "Promotion for uint16, uint32, uint64 types is not supported, "
            f"attempted to promote {one.name} and {other.name}"
        )
    low, high = sorted((one, other), key=lambda dtype: _RANKS(dtype.kind))
    return high if low.kind in "bui" and high.kind in "fc" else np.promote_types(one, other)


def _is_wide_unsigned(dtype: Dtype) -> bool:
    return dtype.kind == "u" and dtype.itemsize > 1


def as_array(value: Any) -> Array:
    """Return what ``torch.as_tensor(value)`` holds; arrays are not copied."""
    if isinstance(value, np.ndarray):
        return _checked(value)
    dtype = _dtype_of(value)
    shape = _shape_of(value)
    leaves = list(_leaves(value, shape, 0)) if shape else [value]
    return _filled(leaves, dtype).reshape(shape)


def _checked(value: Array) -> Array:
    itemsize = value.itemsize or 1
    for stride in value.strides:
        if stride < 0:
            raise ValueError(
                "At least one stride in the given numpy array is negative, and tensors with negative strides are not "
                "currently supported. (You can probably work around this by making a copy of your array  with "
                "array.copy().) "
            )
        if stride % itemsize:
            raise ValueError(
                "given numpy array strides not a multiple of the element byte size. "
                "Copy the numpy array to reallocate the memory."
            )
    dtype = value.dtype
    if not dtype.isnative:
        raise ValueError(
            "given numpy array has byte order different from the native byte order. "
            "Conversion between byte orders is currently not supported."
        )
    if dtype.char not in _KNOWN:
        check_dtype(dtype)
    return value if type(value) is np.ndarray else value.view(np.ndarray)


def _dtype_of(value: Any) -> Dtype:
    plain = _PLAIN.get(type(value))
    if plain is not None:
        return plain
    if isinstance(value, str | bytes):
        raise TypeError(f"new(): invalid data type '{type(value).__name__}'")
    if isinstance(value, np.ndarray | np.generic):
        return check_dtype(value.dtype)
    for kind, dtype in _PLAIN.items():
        if isinstance(value, kind):
            return dtype
    if _is_sequence(value):
        return _common_dtype(value)
    raise RuntimeError(f"Could not infer dtype of {type(value).__name__}")


def _common_dtype(values: Sequence[Any]) -> Dtype:
    common: Dtype | None = None
    for index in range(len(values)):
        found = _dtype_of(values[index])
        common = found if common is None else promote(common, found)
        if common == _DOUBLE_COMPLEX:  # nothing is wider, so torch stops here
            return common
    return common or _FLOAT


def _is_sequence(value: Any) -> bool:
    if isinstance(value, dict | np.generic):
        return False
    # Not hasattr: the class of an enum's member answers for the whole enum.
    return any("__getitem__" in vars(kind) for kind in type(value).__mro__)


def _shape_of(value: Any) -> tuple[int, ...]:
    """Return the lengths along the first members, as torch does; the other members must match."""
    shape: list[int] = []
    while _is_sequence(value):
        shape.append(len(value))
        if not shape[-1]:
            break
        value = value[0]
    return tuple(shape)


def _leaves(value: Any, shape: tuple[int, ...], dim: int) -> Iterator[Any]:
    if not _is_sequence(value):
        raise TypeError("not a sequence")
    members = list(value)
    if len(members) != shape[dim]:
        raise ValueError(f"expected sequence of length {shape[dim]} at dim {dim} (got {len(members)})")
    if dim + 1 == len(shape):
        yield from members
        return
    for member in members:
        yield from _leaves(member, shape, dim + 1)


def _filled(leaves: Sequence[Any], dtype: Dtype) -> Array:
    if dtype.kind == "b":
        return np.array([bool(leaf) for leaf in leaves], dtype)
    if dtype.kind == "c":
        return np.array([_complex(leaf) for leaf in leaves], _DOUBLE_COMPLEX).astype(dtype)
    if dtype.kind == "f":
        # Via float64, as in torch: an int64 is rounded twice on its way to float32.
        with np.errstate(over="ignore"):
            return doubles(leaves).astype(dtype)
    if dtype == _UNSIGNED:
        raise TypeError("an integer is required")
    try:
        return np.array(array("q", leaves)).astype(dtype)
    except OverflowError:
        raise ValueError("Overflow when unpacking long long") from None


def doubles(leaves: Sequence[Any]) -> Array:
    """Return numbers as float64; raise for anything else, including strings that look like numbers."""
    # Not np.array(leaves, float): it would parse the string "1.5" as a number, and a list as another dimension.
    return np.array(array("d", leaves))


def _complex(leaf: Any) -> complex:
    return complex(leaf) if hasattr(type(leaf), "__complex__") else complex(doubles([leaf])[0])


def numbers(column: Sequence[Any]) -> Array:
    """Return what ``torch.tensor(column)`` holds, for a column whose first value is a number."""
    kinds = set(map(type, column))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind is int:
            return _filled(column, _LONG)
        if issubclass(kind, np.generic) and kind is not np.uint64:
            return np.array(column, check_dtype(column[0].dtype))
    return as_array(column)


def are_alike(samples: Sequence[Any]) -> bool:
    """Return True if all are plain arrays of one shape and layout that torch accepts: no other check is needed."""
    first = samples[0]
    if type(first) is not np.ndarray or as_array(first) is not first:
        return False
    shape, strides, dtype = first.shape, first.strides, first.dtype
    return all(
        type(s) is np.ndarray and s.dtype == dtype and s.shape == shape and s.strides == strides for s in samples
    )


def stack(arrays: Sequence[Array]) -> Array:
    """Return the result of ``torch.stack`` for tensors of these arrays."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    for index, other in enumerate(arrays):
        if other.shape != shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(shape)} at entry 0 "
                f"and {list(other.shape)} at entry {index}"
            )
        if other.dtype != dtype:
            dtype = promote(dtype, other.dtype)
    return stack_alike(arrays, dtype)


def stack_alike(arrays: Sequence[Array], dtype: Dtype) -> Array:
    """Return arrays of one shape as one array of this dtype."""
    shape = arrays[0].shape
    whole = empty((len(arrays), *shape), dtype)
    with np.errstate(over="ignore"):
        if not shape:
            for index, number in enumerate(arrays):
                whole[index] = number
        elif whole.size:
            # Not np.stack: it takes four times as long for small arrays. Each array is cast directly to the dtype.
            np.concatenate(arrays, out=whole.reshape(-1, *shape[1:]), casting="unsafe")
    return whole
