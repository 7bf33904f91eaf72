"""Estimates the size of each column of a file in memory, from the chunks in its footer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from antifreeze.formats._chunks import ChunkField, FooterIndex, GroupChunks, decode
from antifreeze.formats._leaves import plain

# A str or bytes object, beside its characters.
_OBJECT_BYTES = 50
_POINTERS_BYTES = 16
_DECIMAL_BYTES = 8

# Rows or bytes that no file has.
_MAX_CLAIMED = 2**48
# What estimates are cut to: a claim of more is no better known.
_MAX_ESTIMATED = 2.0**60

# Untyped, for the stubs of Arrow narrow types by these questions further than the answers go.
_TYPES: Any = pa.types

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footer:
    """The facts of one file; ``nbytes``, ``values`` and ``lengths`` have one entry per field of the schema."""

    group_rows: tuple[int, ...]
    schema: pa.Schema
    """Without metadata, so that equal schemas compare equal."""
    nbytes: tuple[int, ...]
    """Estimated bytes once decoded."""
    values: tuple[int, ...]
    """Leaf values."""
    lengths: tuple[int | None, ...]
    """Leaf values per row if all groups with rows have the same number of them, else None."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A schema and how its columns are measured; files with equal schemas share one."""

    schema: pa.Schema
    """Without metadata."""
    first_leaf: _Integers
    """One entry per column: the first of its leaves."""
    is_flat: _Bools
    """One entry per column: not nested, as many values as rows."""
    widths: _Integers
    """One entry per leaf: decoded bytes per value, -1 for strings and binary."""

    @property
    def num_leaves(self) -> int:
        """Number of leaves of all columns."""
        return len(self.widths)


def layout_of(schema: pa.Schema) -> Layout:
    """Return the layout of a schema."""
    kinds: dict[int, tuple[bool, list[int]]] = {}
    flat: list[bool] = []
    widths: list[int] = []
    first: list[int] = []
    for kind in schema.types:
        # By number, for equal types are different objects, and comparing ten thousand of them takes a while.
        known = kinds.get(kind.id)
        if known is None:
            known = (not _TYPES.is_nested(plain(kind)), _leaf_widths(kind))
            if not (isinstance(kind, pa.BaseExtensionType) or _TYPES.is_nested(kind) or _TYPES.is_dictionary(kind)):
                kinds[kind.id] = known
        is_flat, leaves = known
        if not leaves:
            raise ValueError("a column has no leaves")
        first.append(len(widths))
        flat.append(is_flat)
        widths += leaves
    return Layout(
        schema=schema.remove_metadata(),
        first_leaf=np.array(first, np.int64),
        is_flat=np.array(flat, np.bool_),
        widths=np.array(widths, np.int64),
    )


def _leaf_widths(kind: Any) -> list[int]:
    """Return the decoded width of each leaf below a type, in the order in which Parquet stores them."""
    kind = plain(kind)
    if _TYPES.is_map(kind):
        return _leaf_widths(kind.key_type) + _leaf_widths(kind.item_type)
    if _TYPES.is_struct(kind):
        return [width for field in kind for width in _leaf_widths(field.type)]
    if _TYPES.is_nested(kind):
        return _leaf_widths(kind.value_type)
    if _TYPES.is_boolean(kind) or _TYPES.is_null(kind):
        return [1]
    if _TYPES.is_decimal(kind):
        return [_DECIMAL_BYTES]
    if _TYPES.is_primitive(kind):
        return [kind.bit_width // 8]
    return [-1]


def measure(layout: Layout, index: FooterIndex) -> Footer:
    """Return the facts of a file.

    Raises:
        ValueError: the footer claims what cannot be.
    """
    if any(count != layout.num_leaves for count in index.num_chunks):
        raise ValueError(f"a row group has {sorted(index.num_chunks)} column chunks, expected {layout.num_leaves}")
    if min(index.group_rows, default=0) < 0 or min(index.group_nbytes, default=0) < 0:
        raise ValueError("a row group claims a negative number of rows or bytes")
    rows, nbytes_in_file = sum(index.group_rows), sum(index.group_nbytes)
    if max(rows, nbytes_in_file) > _MAX_CLAIMED:
        raise ValueError("the row groups claim an impossible number of rows or bytes")
    widths = layout.widths[layout.first_leaf]
    # The size of these follows from the number of rows, which makes wide tables of numbers cheap.
    is_known = layout.is_flat & (widths >= 0)
    nbytes, values = rows * widths, np.full_like(widths, rows)
    lengths = np.full_like(widths, 1 if rows else -1)
    if rows and not is_known.all():
        found_nbytes, found_values, found_lengths = _added_up(layout, index.first_groups, rows, nbytes_in_file)
        nbytes = np.where(is_known, nbytes, found_nbytes)
        values = np.where(is_known, values, found_values)
        lengths = np.where(is_known, lengths, found_lengths)
    return Footer(
        group_rows=tuple(index.group_rows),
        schema=layout.schema,
        nbytes=tuple(nbytes.tolist()),
        values=tuple(values.tolist()),
        lengths=tuple(None if length < 0 else length for length in lengths.tolist()),
    )


def _added_up(
    layout: Layout, groups: Sequence[GroupChunks], rows: int, nbytes_in_file: int
) -> tuple[_Integers, _Integers, _Integers]:
    """Return bytes, values and lengths (-1: they differ) of all columns, from the first row groups, or from all."""
    first, widths = layout.first_leaf, layout.widths
    group_rows = np.array([group.num_rows for group in groups], np.int64).reshape(-1, 1)
    counts, sizes = (_table(layout, groups, field) for field in (ChunkField.NUM_VALUES, ChunkField.UNCOMPRESSED_NBYTES))
    wrong = (counts < group_rows) | (counts > _MAX_CLAIMED) | (sizes < 0) | (sizes > _MAX_CLAIMED)
    is_flat_leaf = np.repeat(layout.is_flat, np.diff(first, append=len(widths)))
    wrong |= is_flat_leaf & (counts != group_rows)
    is_wrong = np.logical_or.reduceat(wrong.any(axis=0), first)
    # Floats hold all sums that honest files have, exactly, and do not overflow with the others.
    objects = np.maximum(sizes, counts * float(_POINTERS_BYTES)) + counts * float(_OBJECT_BYTES)
    nbytes = np.add.reduceat(np.where(widths < 0, objects, counts * widths.astype(float)).sum(axis=0), first)
    group_values = np.add.reduceat(counts.astype(float), first, axis=1)
    values, lengths = group_values.sum(axis=0), _lengths(group_values, group_rows)
    seen_rows, seen_nbytes = int(group_rows.sum()), sum(group.total_byte_size for group in groups)
    if not seen_rows:
        is_wrong[:] = True
    elif seen_rows < rows:
        lengths = np.where(layout.is_flat, lengths, -1)  # another length may follow
        # By bytes, for row groups of equally many rows can differ in size.
        fraction = nbytes_in_file / seen_nbytes if seen_nbytes else rows / seen_rows
        nbytes = nbytes * fraction
        values = np.where(layout.is_flat, rows, np.maximum(values * fraction, rows))
    # Chunks that cannot be true give a cautious guess: the column is all that the file holds, one byte per value.
    guess = nbytes_in_file + rows * float(_OBJECT_BYTES + _POINTERS_BYTES)
    return (
        _whole(np.where(is_wrong, guess, nbytes)),
        _whole(np.where(is_wrong, max(rows, nbytes_in_file), values)),
        np.where(is_wrong, -1, lengths),
    )


def _table(layout: Layout, groups: Sequence[GroupChunks], field: ChunkField) -> _Integers:
    """Return one row per group, one column per leaf."""
    numbers = decode([number for group in groups for number in group.raw[field]])
    return np.array(numbers, np.int64).reshape(len(groups), layout.num_leaves)


def _lengths(values: _Floats, rows: _Integers) -> _Integers:
    """Return the values per row of each column, if all groups with rows have the same number of them, else -1."""
    filled = rows[:, 0] > 0
    if not filled.any():
        return np.full(values.shape[1], -1, np.int64)
    per_row, rest = np.divmod(values[filled], rows[filled])
    per_row = np.where(rest == 0, np.minimum(per_row, _MAX_CLAIMED), -1)
    smallest = per_row.min(axis=0)
    return np.where(smallest == per_row.max(axis=0), smallest, -1).astype(np.int64)


def _whole(numbers: _Floats) -> _Integers:
    return np.minimum(numbers, _MAX_ESTIMATED).astype(np.int64)
