"""Recognises list columns whose rows all have one shape, from the footers and the first rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import pyarrow as pa
import pyarrow.compute as pc

from antifreeze.core import ColumnFacts
from antifreeze.formats._leaves import ArrowArray, dtype_of, levels
from antifreeze.formats._scalars import unwrapped


def _shape_of(column: ArrowArray, depth: int) -> tuple[int, ...] | None:
    """Return the shape that all rows have, null lists left out; None if they differ or there are none."""
    shape: list[int] = []
    for _ in range(depth):
        column = unwrapped(column)
        lengths = pc.unique(pc.drop_null(pc.list_value_length(column)))
        if len(lengths) != 1:
            return None
        shape.append(lengths[0].as_py())
        column = column.flatten()
    return tuple(shape)


def infer_shapes(
    schema: pa.Schema, facts: Mapping[str, ColumnFacts], sample: pa.RecordBatch | None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of a row for each top-level list column of numbers that has one shape throughout.

    The footers give the number of values per row but not how they are cut into rows, and the sample shows the
    cuts but only of its own rows. A column is taken as fixed if both agree; the converter checks every piece.
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
