"""Recognises list columns whose rows all have one shape, from the footers and the first rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import pyarrow as pa

from antifreeze.core import ColumnFacts
from antifreeze.formats._leaves import ArrowArray, dtype_of, levels
from antifreeze.formats._lists import spans
from antifreeze.formats._scalars import unwrapped


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
