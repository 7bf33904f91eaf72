"""Estimates the size of each column of a file in memory, from the chunks in its footer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from antifreeze.formats._chunks import GroupChunks, GroupIndex, decode

# A str or bytes object, beside its characters.
_OBJECT_BYTES = 50
_POINTERS_BYTES = 16
_DECIMAL_BYTES = 8

# Rows or bytes that no file has.
_MAX_CLAIMED = 2**48
# What estimates are cut to: a claim of more is no better known.
_MAX_ESTIMATED = 2.0**60

# NumPy is slow on a few numbers, and a file can have a million row groups of one chunk: they are added up in blocks.
_BLOCK_CHUNKS = 4096
# A look at each of 10,000 chunks takes as long as Arrow needs to open a file of 20,000. Files with more are measured
# by their first row groups.
MAX_CHUNKS_MEASURED = 10_000

# Untyped, for the stubs of Arrow narrow types by these questions further than the answers go.
_TYPES: Any = pa.types

_Integers = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A schema and how its columns are measured; files with equal schemas fraction one."""

    schema: pa.Schema
    first_leaf: _Integers
    """One entry per column: the first of its leaves."""
    is_flat: _Bools
    """One entry per column: not nested, as many values as rows."""
    widths: _Integers
    """One entry per leaf: decoded bytes per value, -1 for strings and binary."""
    is_flat_leaf: _Bools
    """One entry per leaf: that of its column."""
    is_known: _Bools
    """One entry per column: its size follows from the number of rows, which makes wide tables of numbers cheap."""

    @property
    def num_leaves(self) -> int:
        """Number of leaves of all columns."""
        return len(self.widths)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizes:
    """One entry per column."""

    nbytes: _Integers
    """Estimated bytes once decoded."""
    values: _Integers
    """Leaf values."""
    lengths: _Integers
    """Leaf values per row if all groups with rows have the same number of them, else -1."""


def layout_of(schema: pa.Schema, known: list[Layout]) -> Layout:
    """Return the layout of a schema, and keep it in ``known``."""
    for layout in known:
        if layout.schema.equals(schema):
            return layout
    kinds: dict[int, tuple[bool, list[int]]] = {}
    flat: list[bool] = []
    widths: list[int] = []
    first: list[int] = []
    for kind in schema.types:
        # By number, for equal types are different objects, and comparing ten thousand of them takes a while.
        known_kind = kinds.get(kind.id)
        if known_kind is None:
            known_kind = (_is_flat(kind), _leaf_widths(kind))
            if not (isinstance(kind, pa.BaseExtensionType) or _TYPES.is_nested(kind) or _TYPES.is_dictionary(kind)):
                kinds[kind.id] = known_kind
        is_flat, leaves = known_kind
        if not leaves:
            raise ValueError("a column has no leaves")
        first.append(len(widths))
        flat.append(is_flat)
        widths += leaves
    first_leaf, is_flat_column = np.array(first, np.int64), np.array(flat, np.bool_)
    leaf_widths = np.array(widths, np.int64)
    layout = Layout(
        schema=schema.remove_metadata(),
        first_leaf=first_leaf,
        is_flat=is_flat_column,
        widths=leaf_widths,
        is_flat_leaf=np.repeat(is_flat_column, np.diff(first_leaf, append=len(widths))),
        is_known=is_flat_column & (leaf_widths[first_leaf] >= 0),
    )
    # A handful at most: files that all differ must not be compared with each other.
    if len(known) < 8:
        known.append(layout)
    return layout


def _is_flat(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_flat(kind.storage_type)
    return not _TYPES.is_nested(kind)


def _leaf_widths(kind: Any) -> list[int]:
    """Return the decoded width of each leaf below a type, in the order in which Parquet stores them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_widths(kind.storage_type)
    if _TYPES.is_dictionary(kind):
        return _leaf_widths(kind.value_type)
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


def measure(layout: Layout, index: GroupIndex) -> Sizes:
    """Return the sizes of all columns.

    Raises:
        ValueError: the footer claims what cannot be.
    """
    if any(count != layout.num_leaves for count in index.num_chunks):
        raise ValueError(f"a row group has {index.num_chunks} column chunks, expected {layout.num_leaves}")
    if min(index.group_rows, default=0) < 0 or min(index.group_nbytes, default=0) < 0:
        raise ValueError("a row group claims a negative number of rows or bytes")
    rows, nbytes_in_file = sum(index.group_rows), sum(index.group_nbytes)
    if max(rows, nbytes_in_file) > _MAX_CLAIMED:
        raise ValueError("the row groups claim an impossible number of rows or bytes")
    widths = layout.widths[layout.first_leaf]
    is_known = layout.is_known
    if is_known.all() or not rows:
        lengths = np.full_like(widths, 1 if rows else -1)
        return Sizes(nbytes=rows * widths, values=np.full_like(widths, rows), lengths=lengths)
    total = _Total(layout)
    total.add_all(index.first_groups)
    found = total.result(rows, nbytes_in_file)
    return Sizes(
        nbytes=np.where(is_known, rows * widths, found.nbytes),
        values=np.where(is_known, rows, found.values),
        lengths=np.where(is_known, 1, found.lengths),
    )


class _Total:
    """Adds up the chunks of each column."""

    def __init__(self, layout: Layout) -> None:
        columns = len(layout.first_leaf)
        self._layout = layout
        self._rows = self._nbytes_in_file = 0
        # Floats hold all sums that honest files have, exactly, and do not overflow with the others.
        self._nbytes, self._values = np.zeros(columns), np.zeros(columns)
        self._is_wrong = np.zeros(columns, np.bool_)
        # Values per row so far; -1 where it varies, -2 where nothing was seen.
        self._lengths = np.full(columns, -2, np.int64)

    def add_all(self, groups: Sequence[GroupChunks]) -> None:
        """Add row groups: all of them, or the first."""
        at_once = max(1, _BLOCK_CHUNKS // self._layout.num_leaves)
        for start in range(0, len(groups), at_once):
            self._add(groups[start : start + at_once])

    def _add(self, groups: Sequence[GroupChunks]) -> None:
        first = self._layout.first_leaf
        widths = self._layout.widths
        rows = np.array([[group.num_rows] for group in groups], np.int64)
        counts = _table(group.raw_num_values for group in groups)
        sizes = _table(group.raw_uncompressed_nbytes for group in groups)
        wrong = (counts < rows) | (counts > _MAX_CLAIMED) | (sizes < 0) | (sizes > _MAX_CLAIMED)
        wrong |= self._layout.is_flat_leaf & (counts != rows)
        self._is_wrong |= np.logical_or.reduceat(wrong.any(axis=0), first)
        objects = np.maximum(sizes, counts * float(_POINTERS_BYTES)) + counts * float(_OBJECT_BYTES)
        nbytes = np.where(widths < 0, objects, counts * widths.astype(float))
        values = np.add.reduceat(counts.astype(float), first, axis=1)
        self._nbytes += np.add.reduceat(nbytes.sum(axis=0), first)
        self._values += values.sum(axis=0)
        self._rows += int(rows.sum())
        self._nbytes_in_file += sum(group.total_byte_size for group in groups)
        filled = rows[:, 0] > 0
        if filled.any():
            per_row, rest = np.divmod(values[filled], rows[filled])
            self._add_lengths(np.where(rest == 0, np.minimum(per_row, _MAX_CLAIMED), -1).astype(np.int64))

    def _add_lengths(self, lengths: _Integers) -> None:
        smallest, largest = lengths.min(axis=0), lengths.max(axis=0)
        one = np.where(smallest == largest, smallest, -1)
        self._lengths = np.where((self._lengths == -2) | (self._lengths == one), one, -1)

    def result(self, rows: int, nbytes_in_file: int) -> Sizes:
        """Return the sizes; those of all row groups, if only some were added."""
        nbytes, values, lengths = self._nbytes, self._values, np.maximum(self._lengths, -1)
        if not self._rows:
            self._is_wrong[:] = True
        elif self._rows < rows:
            lengths = np.where(self._layout.is_flat, lengths, -1)  # another length may follow
            # By bytes, for row groups of equally many rows can differ in size.
            fraction = nbytes_in_file / self._nbytes_in_file if self._nbytes_in_file else rows / self._rows
            nbytes, values = (
                nbytes * fraction,
                np.where(self._layout.is_flat, rows, np.maximum(values * fraction, rows)),
            )
        # Chunks that cannot be true give a cautious guess: the column is all that the file holds, one byte per value.
        objects = rows * float(_OBJECT_BYTES + _POINTERS_BYTES)
        return Sizes(
            nbytes=_whole(np.where(self._is_wrong, nbytes_in_file + objects, nbytes)),
            values=_whole(np.where(self._is_wrong, max(rows, nbytes_in_file), values)),
            lengths=np.where(self._is_wrong, -1, lengths),
        )


def _table(numbers: Iterable[Sequence[bytes | int]]) -> _Integers:
    """Return one row per group, one column per leaf."""
    rows = list(numbers)
    flat = np.frombuffer(decode([number for row in rows for number in row]), np.int64)
    return flat.reshape(len(rows), -1)


def _whole(numbers: _Floats) -> _Integers:
    return np.minimum(numbers, _MAX_ESTIMATED).astype(np.int64)
