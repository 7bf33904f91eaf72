"""Arrow arrays as NumPy arrays that belong to the caller: writable, and shared with nothing.

The buffers that the Parquet decoder fills are mutable and have no other owner, so they are taken over as they
are. Whatever is not mutable is copied. Fill values for nulls are checked against the type of their column.

Lists whose rows have one shape become one array, others one array per row. Maps, lists of structs and what else has no
array form become plain Python objects, one per row.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from antifreeze.core import ColumnFacts
from antifreeze.formats._leaves import ArrowArray, ArrowType, dtype_of, is_listy, is_text, levels, plain

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
    floats = (0.0 if value is None else float(value) for value in array.to_pylist())
    return np.fromiter(floats, np.float64, len(array))


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


# -- fill values ---------------------------------------------------------------------------------------------------


class Misfit(Exception):
    """A fill value that the type cannot hold."""


def _prepared(arrow_type: ArrowType, value: Any) -> Any:
    """Return the value as the Python type that Arrow converts to the type without loss."""
    if pt.is_boolean(arrow_type) and isinstance(value, bool | int) and value in (0, 1):
        return bool(value)
    # Arrow would silently truncate 0.5 to 0.
    if pt.is_integer(arrow_type) and (isinstance(value, bool | int) or (type(value) is float and value.is_integer())):
        return int(value)
    if pt.is_floating(arrow_type) and isinstance(value, bool | int | float | decimal.Decimal):
        return float(value)
    is_number = pt.is_boolean(arrow_type) or pt.is_integer(arrow_type) or pt.is_floating(arrow_type)
    text = str if pt.is_string(arrow_type) or pt.is_large_string(arrow_type) or pt.is_string_view(arrow_type) else bytes
    if is_number or (is_text(arrow_type) and not isinstance(value, text)):
        raise Misfit
    return decimal.Decimal(str(value)) if pt.is_decimal(arrow_type) and isinstance(value, float) else value


def filled(arrow_type: ArrowType, value: Any) -> ArrowArray | np.generic:
    """Return the fill value as an Arrow array of length one, or as a NumPy time; raise Misfit if it does not fit."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        dtype = dtype_of(arrow_type)
        if dtype is None or dtype.kind != value.dtype.kind:
            raise Misfit
        return value.astype(dtype)
    if isinstance(value, np.generic):
        value = value.item()
    try:
        return pa.array([_prepared(arrow_type, value)], arrow_type)
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise Misfit from error


# -- lists ---------------------------------------------------------------------------------------------------------


class LengthFound(Exception):
    """A list has another length than the one that was expected."""

    def __init__(self, length: int, expected: int) -> None:
        super().__init__(length, expected)
        self.length, self.expected = length, expected


def spans(array: ArrowArray) -> tuple[NDArray[np.integer[Any]], ArrowArray]:
    """Return where each list starts and ends in the values, and the values; null lists are empty.

    The array may be a slice: Arrow keeps all values of its parent, so only the part in use is returned.
    """
    count = len(array)
    kind = type(array)
    if count and not array.null_count:
        # Not array.flatten(): it goes through the compute registry and costs ten times as much.
        if kind is pa.ListArray or kind is pa.LargeListArray:
            width = np.dtype(np.int32 if kind is pa.ListArray else np.int64)
            ends = np.frombuffer(array.buffers()[1], width, count + 1, array.offset * width.itemsize)
            values = array.values
            first, last = int(ends[0]), int(ends[-1])
            if first or last != len(values):
                return ends - first, values.slice(first, last - first)
            return ends, values
        if kind is pa.FixedSizeListArray:
            size = array.type.list_size
            return np.arange(count + 1) * size, array.values.slice(array.offset * size, count * size)
    import pyarrow.compute as pc  # takes a quarter of a second, and few need it

    ends = np.zeros(count + 1, np.int64)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    np.cumsum(lengths, out=ends[1:])
    return ends, array.flatten()


def dense(array: ArrowArray, shape: tuple[int, ...], scalars: Scalars) -> Array:
    """Return ``[n, *shape]``; a null list is all fill values. Raises LengthFound and NullFound."""
    if not shape:
        return scalars(array)
    array = unwrapped(array)
    count, size = len(array), shape[0]
    valid: Array | None = None
    if array.null_count:
        if scalars.fill is None:
            raise NullFound
        valid = array.is_valid().to_numpy(zero_copy_only=False)
    ends, values = spans(array)
    lengths = ends[1:] - ends[:-1]
    if valid is not None:
        lengths = lengths[valid]
    wrong = lengths != size
    if wrong.any():
        raise LengthFound(int(lengths[wrong.argmax()]), size)
    rows = dense(values, shape[1:], scalars).reshape(len(lengths), *shape)
    if valid is None:
        return rows
    padded = np.full((count, *shape), scalars.fill, scalars.dtype)
    padded[valid] = rows
    return padded


def ragged(array: ArrowArray, depth: int, shape: tuple[int, ...], scalars: Scalars) -> list[Any]:
    """Return one ndarray ``[k, *shape]`` per list (texts: a list), in ``depth - 1`` levels of Python lists.

    A null list is an empty one. The arrays are parts of one array and do not overlap.
    """
    array = unwrapped(array)
    if array.null_count and scalars.fill is None:
        raise NullFound
    ends, values = spans(array)
    items: Any
    if depth > 1:
        items = ragged(values, depth - 1, shape, scalars)
    else:
        items = dense(values, shape, scalars)
        if scalars.dtype.kind == "O":
            items = items.tolist()
    return [items[start:stop] for start, stop in pairwise(ends.tolist())]


def _shape_of(column: ArrowArray, depth: int) -> tuple[int, ...] | None:
    """Return the shape that all rows have, null lists left out; None if they differ or there are none."""
    shape: list[int] = []
    for _ in range(depth):
        column = unwrapped(column)
        ends, values = spans(column)
        lengths = np.diff(ends)
        if column.null_count:
            lengths = lengths[column.is_valid().to_numpy(zero_copy_only=False)]
        if not len(lengths) or (lengths != lengths[0]).any():
            return None
        shape.append(int(lengths[0]))
        column = values
    return tuple(shape)


def infer_shapes(
    schema: pa.Schema, facts: Mapping[str, ColumnFacts], sample: pa.RecordBatch | None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of a row for each top-level list column of numbers that has one shape throughout.

    The footers give the number of values per row but not how they are cut into rows, and the sample shows the
    cuts but only of the sampled rows. A column is taken as fixed if both agree; the converter checks every piece.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for field in schema:
        sizes, inner = levels(field.type)
        dtype = dtype_of(inner)
        length = facts[field.name].length if field.name in facts else None
        if None not in sizes or dtype is None or dtype.kind == "O" or length is None:
            continue
        if sample is not None and sample.num_rows:
            shape = _shape_of(sample.column(field.name), len(sizes))
            if shape is not None and prod(shape) == length:
                shapes[field.name] = shape
        elif len(sizes) == 1:
            shapes[field.name] = (length,)
    return shapes


# -- objects -------------------------------------------------------------------------------------------------------

Walk = Callable[[Any], Any]


def _unless_null(walk: Walk | None, make_fill: Callable[[], Any] | None) -> Walk:
    """Return a function that fills None, or refuses it, and gives all else to ``walk``, if there is one."""

    def walk_or_fill(value: Any) -> Any:
        if value is not None:
            return value if walk is None else walk(value)
        if make_fill is None:
            raise NullFound
        return make_fill()

    return walk_or_fill


def _walk(arrow_type: ArrowType, fill: Any) -> Walk:
    """Return a function that checks an object of the type for None, or fills it."""
    arrow_type = plain(arrow_type)
    empty = None if fill is None else list
    if pt.is_map(arrow_type):
        key, item = _walk(arrow_type.key_type, fill), _walk(arrow_type.item_type, fill)
        return _unless_null(lambda value: [(key(name), item(part)) for name, part in value], empty)
    if is_listy(arrow_type):
        item = _walk(arrow_type.value_type, fill)
        return _unless_null(lambda value: [item(part) for part in value], empty)
    if pt.is_struct(arrow_type):
        parts = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        walks = {part.name: _walk(part.type, fill) for part in parts}
        return _unless_null(
            lambda value: {name: walk(value[name]) for name, walk in walks.items()},
            None if fill is None else lambda: {name: walk(None) for name, walk in walks.items()},
        )
    if fill is not None and not pt.is_null(arrow_type):
        try:
            array = filled(arrow_type, fill)
        except Misfit:
            # One fill value cannot suit every type inside; where it does not, a null stays an error.
            return _unless_null(None, None)
        fill = array.item() if isinstance(array, np.generic) else array[0].as_py()
    return _unless_null(None, None if fill is None else lambda: fill)


def objects(arrow_type: ArrowType, fill: object) -> Callable[[ArrowArray], list[Any]]:
    """Return a function from an array of the type to one Python object per row."""
    walk = _walk(arrow_type, fill)
    return lambda array: [walk(value) for value in unwrapped(array).to_pylist()]
