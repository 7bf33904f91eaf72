"""Arrow arrays of scalars as NumPy arrays that belong to the caller: writable, and shared with nothing.

The buffers that the Parquet decoder fills are mutable and have no other owner, so they are taken over as they
are. Whatever is not mutable is copied. Fill values for nulls are checked against the type of their column.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from antifreeze.formats._leaves import ArrowArray, ArrowType, dtype_of, is_text, plain

Array = NDArray[Any]

_EXACT = 2**53
"""Integers up to here are exact as float64."""


class NullFound(Exception):
    """A null was found, and there is no fill value."""


def unwrapped(array: ArrowArray) -> ArrowArray:
    """Return the array with dictionaries decoded and extensions taken off."""
    while True:
        if isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.ExtensionArray):
            array = array.storage
        else:
            return array


def owned(array: ArrowArray, dtype: np.dtype[Any], per_value: int = 1) -> Array:
    """Return the values of a fixed-width array; the values of nulls are undefined."""
    count = len(array) * per_value
    if not count:
        return np.empty(0, dtype)
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer, dtype, count, array.offset * per_value * dtype.itemsize)
    return values if values.flags.writeable else values.copy()


def _bits(array: ArrowArray) -> Array:
    if not len(array):
        return np.empty(0, np.bool_)
    first = array.offset // 8
    start = array.offset % 8
    stop = start + len(array)
    packed = np.frombuffer(array.buffers()[1], np.uint8, (stop + 7) // 8, first)
    return np.unpackbits(packed, count=stop, bitorder="little")[start:].view(np.bool_)


def _texts(array: ArrowArray) -> Array:
    try:
        texts: Array = array.to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        # Parquet readers do not check that a string is UTF-8, and Arrow's "Wrapping failed" says little.
        raise ValueError("text that is not UTF-8") from error
    return texts


def _float(value: decimal.Decimal | None) -> float:
    return 0.0 if value is None else float(value)


def _decimals(array: ArrowArray) -> Array:
    """Return the nearest float64 of each decimal.

    Tried: Arrow's own cast. It rounds twice, so one value in fifteen of a decimal(20, 3) is off by one bit.
    """
    width, scale = array.type.bit_width, array.type.scale
    if width == 32:
        low = owned(array, np.dtype(np.int32)).astype(np.int64)
        fits = True
    else:
        words = owned(array, np.dtype(np.int64), width // 64).reshape(len(array), width // 64)
        low = words[:, 0]
        fits = bool((words[:, 1:] == (low >> 63)[:, None]).all())
    # A quotient of two exact floats is the nearest one; 10**22 is the last power of ten that is exact.
    if fits and 0 <= scale <= 22 and (not len(low) or (low.min() >= -_EXACT and low.max() <= _EXACT)):
        return low / np.float64(10**scale)
    return np.fromiter(map(_float, array.to_pylist()), np.float64, len(array))


def _reader(arrow_type: ArrowType, dtype: np.dtype[Any]) -> Callable[[ArrowArray], Array]:
    if pt.is_null(arrow_type):
        return lambda array: np.empty(len(array), dtype)
    if dtype.kind == "O":
        return _texts
    if pt.is_boolean(arrow_type):
        return _bits
    if pt.is_decimal(arrow_type):
        return _decimals
    if dtype.kind in "mM" and arrow_type.bit_width == 32:
        return lambda array: owned(array, np.dtype(np.int32)).astype(np.int64).view(dtype)
    return lambda array: owned(array, dtype)


class Scalars:
    """Reads arrays of one scalar type; ``fill`` replaces nulls (None: nulls are rejected)."""

    def __init__(self, arrow_type: ArrowType, dtype: np.dtype[Any], fill: object) -> None:
        self.fill = fill
        self.dtype = dtype
        self._read = _reader(plain(arrow_type), dtype)

    def __call__(self, array: ArrowArray) -> Array:
        """Return the values, nulls filled; raise NullFound if there are any and no fill value is known."""
        if isinstance(array, pa.DictionaryArray) and self.dtype.kind == "O":
            shared = self._shared(array)
            if shared is not None:
                return shared
        array = unwrapped(array)
        if not array.null_count:
            return self._read(array)
        if self.fill is None:
            raise NullFound
        values = self._read(array)
        values[array.is_null().to_numpy(zero_copy_only=False)] = self.fill
        return values

    def _shared(self, array: ArrowArray) -> Array | None:
        """Return texts made once per dictionary entry, if that is less work; texts cannot be written to."""
        dictionary = array.dictionary
        if array.null_count or dictionary.null_count or len(dictionary) > len(array):
            return None
        texts: Array = self._read(unwrapped(dictionary))
        taken: Array = texts[array.indices.to_numpy()]
        return taken


class Misfit(Exception):
    """A fill value that the type cannot hold."""


def _integer(value: Any) -> int:
    # Arrow would silently truncate 0.5 to 0.
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise Misfit


def _as_float(value: Any) -> float:
    if isinstance(value, bool | int | float | decimal.Decimal):
        return float(value)
    raise Misfit


def _boolean(value: Any) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise Misfit


def _prepared(arrow_type: ArrowType, value: Any) -> Any:
    """Return the value as the Python type that Arrow converts to the type without loss."""
    if pt.is_boolean(arrow_type):
        return _boolean(value)
    if pt.is_integer(arrow_type):
        return _integer(value)
    if pt.is_floating(arrow_type):
        return _as_float(value)
    if pt.is_decimal(arrow_type):
        return decimal.Decimal(str(value)) if isinstance(value, float) else value
    if is_text(arrow_type):
        texts = pt.is_string(arrow_type) or pt.is_large_string(arrow_type) or pt.is_string_view(arrow_type)
        if not isinstance(value, str if texts else bytes):
            raise Misfit
    return value


def _ticks(value: np.datetime64 | np.timedelta64, arrow_type: ArrowType) -> np.generic:
    dtype = dtype_of(arrow_type)
    if dtype is None or dtype.kind != value.dtype.kind:
        raise Misfit
    ticks: np.generic = value.astype(dtype)
    return ticks


def filled(arrow_type: ArrowType, value: Any) -> ArrowArray | np.generic:
    """Return the fill value as an Arrow array of length one, or as a NumPy time; raise Misfit if it does not fit."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return _ticks(value, arrow_type)
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return pa.array([_prepared(arrow_type, value)], arrow_type)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise Misfit from error


def python_fill(arrow_type: ArrowType, value: Any) -> Any:
    """Return the fill value as the Python object that Arrow gives for it."""
    array = filled(arrow_type, value)
    return array.item() if isinstance(array, np.generic) else array[0].as_py()
