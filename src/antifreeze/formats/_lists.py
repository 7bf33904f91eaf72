"""Arrow lists as NumPy arrays: all rows of one shape as one array, others as one array per row; and which it is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from antifreeze.core import ColumnFacts
from antifreeze.formats._leaves import ArrowArray, dtype_of, levels
from antifreeze.formats._scalars import Array, NullFound, Scalars, unwrapped


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
