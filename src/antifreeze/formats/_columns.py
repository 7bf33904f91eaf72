"""Turns record batches into blocks: flat dicts of NumPy arrays that belong to the caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from antifreeze.core import (
    ConfigError,
    DataError,
    NullValue,
    RaggedColumn,
    SchemaMismatch,
    UnknownColumn,
)
from antifreeze.formats._arrays import (
    Array,
    LengthFound,
    Misfit,
    NullFound,
    Scalars,
    dense,
    filled,
    objects,
    ragged,
    unwrapped,
)
from antifreeze.formats._leaves import ArrowArray, Leaf, LeafKind, is_tree, leaves_of, levels, named

_Read = Callable[[ArrowArray], Array]
_UNREADABLE = (NullFound, LengthFound, ValueError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceLocation:
    """The location of the first row of a record batch."""

    file: str
    row_group: int
    first_row: int = 0
    """Row number within the row group."""
    file_row: int = 0
    """Row number within the file."""


class Converter:
    """Converts the record batches of one schema.

    Called by decoder threads, once per piece of some hundred rows; holds no state, so any number may share it.

    Invariant: the converter takes ownership of a batch. Its buffers become the arrays, so it cannot be used afterwards.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        fill_null: object | Mapping[str, object] | None = None,
    ) -> None:
        twice = [name for name, count in Counter(schema.names).items() if count > 1]
        if twice:
            raise SchemaMismatch(f'the data has more than one column "{twice[0]}"', column=twice[0])
        self._schema = schema
        self.leaves: tuple[Leaf, ...] = leaves_of(schema, shapes or {}, fill_null)
        _check_names(self.leaves, shapes or {}, "shapes")
        if isinstance(fill_null, Mapping):
            _check_names(self.leaves, fill_null, "fill_null")
        self._reads = tuple(_read_column(leaf, _fill_of(leaf, fill_null)) for leaf in self.leaves)

    def __call__(self, batch: pa.RecordBatch, where: PieceLocation) -> dict[str, Array]:
        """Return one writable array per leaf. Raises NullValue, RaggedColumn, SchemaMismatch and DataError."""
        if batch.schema != self._schema:
            batch = self._matched(batch, where)
        block: dict[str, Array] = {}
        for leaf, read in zip(self.leaves, self._reads, strict=True):
            column = batch.column(leaf.steps[0])
            try:
                block[leaf.key] = read(column)
            except _UNREADABLE as error:
                raise _explained(leaf, read, column, where, error) from error
        return block

    def _matched(self, batch: pa.RecordBatch, where: PieceLocation) -> pa.RecordBatch:
        """Return the batch with the columns of the schema: a file may differ in order, nullability, list names."""
        try:
            columns = [batch.column(field.name).cast(field.type) for field in self._schema]
        except (KeyError, pa.ArrowException) as error:
            raise SchemaMismatch(
                f"{where.file} has other columns than the dataset: {error}",
                hint="rewrite the file, or leave the column out with columns=[...]",
                file=where.file,
            ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _check_names(leaves: tuple[Leaf, ...], table: Mapping[str, object], argument: str) -> None:
    known = {".".join(leaf.path[:end]) for leaf in leaves for end in range(1, len(leaf.path) + 1)}
    known |= {leaf.key for leaf in leaves}
    for name in table:
        if name not in known:
            raise UnknownColumn(
                f'{argument} names column "{name}", which the data does not have', column=name, argument=argument
            )


def _fill_of(leaf: Leaf, fill_null: object | Mapping[str, object] | None) -> Any:
    """Return the fill value for nulls, with the type of the leaf; None: nulls are rejected."""
    value = fill_null
    if isinstance(fill_null, Mapping):
        entry = named(fill_null, leaf.path)
        value = entry[1] if entry else None
    inner = levels(leaf.arrow_type)[1]
    if value is None or pt.is_null(inner) or is_tree(leaf):
        return value
    try:
        array = filled(inner, value)
    except Misfit as error:
        # One value for all columns cannot suit all types; where it does not, a null stays an error.
        if not isinstance(fill_null, Mapping):
            return None
        raise ConfigError(
            f'fill_null: {value!r} is no value of column "{leaf.key}", whose type is {inner}',
            hint=_fill_hint(leaf),
            argument="fill_null",
            column=leaf.key,
        ) from error
    return Scalars(inner, leaf.dtype, None)(array)[0] if isinstance(array, pa.Array) else array


def _read_column(leaf: Leaf, fill: Any) -> _Read:
    read = _read_leaf(leaf, fill)
    return _below(read, leaf.steps[1:], fill is not None) if len(leaf.steps) > 1 else read


def _read_leaf(leaf: Leaf, fill: Any) -> _Read:
    depth, shape = leaf.depth, leaf.shape
    if is_tree(leaf):
        rows = objects(leaf.arrow_type, fill)
        return lambda array: np.fromiter(rows(array), object, len(array))
    scalars = Scalars(levels(leaf.arrow_type)[1], leaf.dtype, fill)
    if depth:
        return lambda array: np.fromiter(ragged(array, depth, shape, scalars), object, len(array))
    if shape:
        return lambda array: dense(array, shape, scalars)
    return scalars


def _below(read: _Read, steps: tuple[int, ...], nulls_filled: bool) -> _Read:
    """Return a function that reads a field of a struct column; a null struct makes its fields null."""

    def read_field(array: ArrowArray) -> Array:
        for step in steps:
            array = unwrapped(array)
            if not array.null_count:
                array = array.field(step)
            elif nulls_filled:
                array = array.flatten()[step]
            else:
                raise NullFound
        return read(array)

    return read_field


def _first_bad_row(read: _Read, column: ArrowArray, error: Exception) -> tuple[int, Exception]:
    """Return the first row that cannot be read, and why, by bisection. Done once it is known that one cannot."""
    good, bad = 0, len(column)
    while bad - good > 0:
        middle = (good + bad) // 2
        try:
            read(column.slice(good, middle - good + 1))
        except _UNREADABLE as caught:
            bad, error = middle, caught
        else:
            good = middle + 1
    return good, error


def _fill_hint(leaf: Leaf) -> str:
    inner = levels(leaf.arrow_type)[1]
    example = 'b""' if "binary" in str(inner) else '""' if leaf.kind is LeafKind.OBJECT else "0"
    return f'fill_null={{"{leaf.key}": {example}}}'


def _explained(leaf: Leaf, read: _Read, column: ArrowArray, where: PieceLocation, error: Exception) -> DataError:
    index, cause = _first_bad_row(read, column, error)
    key, row, file_row = leaf.key, where.first_row + index, where.file_row + index
    facts: dict[str, Any] = {
        "column": key,
        "file": where.file,
        "row_group": where.row_group,
        "row": row,
        "file_row": file_row,
    }
    location = f"row {row} of row group {where.row_group} (row {file_row} of the file) in {where.file}"
    if isinstance(cause, NullFound):
        hint = f"set a fill value for nulls: {_fill_hint(leaf)}"
        return NullValue(f'column "{key}": null at {location}', hint=hint, **facts)
    if isinstance(cause, LengthFound):
        return RaggedColumn(
            f'column "{key}": expected length {cause.expected}, got {cause.length} at {location}',
            hint=f'if rows may differ in length, pass StreamingDataset(..., ragged=["{key}"])',
            length=cause.length,
            expected=cause.expected,
            **facts,
        )
    return DataError(f'column "{key}": a value that cannot be read at {location}: {cause}', **facts)
