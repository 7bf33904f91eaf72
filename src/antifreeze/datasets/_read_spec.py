"""From a source and what was asked of it to how its rows are read."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from antifreeze.core import ConfigError, DataError, ReadLimits, SourceChanged, UnknownColumn
from antifreeze.datasets._source import DataSource
from antifreeze.decode import Arrays, ArrowRows, Decoded, Decoding, StreamReader, ThreadProgress
from antifreeze.formats import Converter, Leaf, LeafKind, Parquet, PieceLocation, infer_shapes, mismatch

PIECE_NBYTES = 4 << 20
"""Rows are decoded in pieces of about this size: larger ones leave the cache and take up to three times the CPU."""
_OBJECT_PIECE_NBYTES = 1 << 19
"""The same for rows that are mostly texts or bytes. Each value is copied into a Python object, so large pieces gain
nothing, while Arrow's buffers for them double as they grow, in fresh memory: most of the time went to the kernel, which
cleared pages."""
_PIECE_ROWS = 1 << 16
_VAGUE_PIECE_ROWS = 1 << 10  # rows whose size only decoding tells; it bounds what the first piece can take
_OPEN_NBYTES = 1_300_000
_PAGE_ROWS = 1 << 10  # Arrow's writer looks at the size of a page after this many rows, however large they are
_SAMPLE_ROWS = 64
_SAMPLE_NBYTES = 8 << 20
"""Looking at the first rows takes no more than this, whatever they hold."""
_SURE_VALUES = 1 << 22
_REFERENCE_NBYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """What the user asks for of a source's columns."""

    columns: tuple[str, ...]
    format: str
    fill_null: object
    ragged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadSpec:
    """How the rows of a dataset are read and converted."""

    decoding: Decoding
    block: type[Decoded]
    leaves: tuple[Leaf, ...]
    row_nbytes: int
    open_nbytes: int
    """What a fragment holds while it is open, beside the piece that is being decoded."""


def column_types(source: DataSource, columns: Sequence[str]) -> dict[str, str]:
    """Return the types of some columns, as text."""
    types = {field.name: str(field.type) for field in source.schema} | {p.name: str(p.type) for p in source.partitions}
    return {name: types[name] for name in columns}


def chosen_columns(source: DataSource, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to deliver, in the order asked for; all of them if nothing was asked for."""
    known = [*source.schema.names, *(p.name for p in source.partitions)]
    if columns is None:
        if (error := mismatch(source.manifest, source.paths)) is not None:
            raise error
        return tuple(known)
    if isinstance(columns, str) or not all(isinstance(c, str) for c in columns):
        raise ConfigError(
            f"columns={columns!r} is not a list of names", hint='write columns=["ids"]', argument="columns"
        )
    if (error := mismatch(source.manifest, source.paths, set(columns) - set(known))) is not None:
        raise error
    for column in columns:
        if column not in known:
            raise UnknownColumn(
                f"there is no column {column!r} in {source.root}; its columns are {', '.join(known)}",
                hint="check the spelling; with key=value folders, pass hive=True",
                column=column,
            )
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(
            f"columns={list(columns)!r} is empty or names a column twice",
            hint="leave columns out for all of them",
            argument="columns",
        )
    return tuple(columns)


def expected_leaves(source: DataSource, wanted: Projection) -> tuple[Leaf, ...]:
    """Return what the columns become, as far as that can be told before a row is read; raises what is wrong by then."""
    if wanted.format != "arrow":
        return Converter(_schema(source, wanted), fill_null=wanted.fill_null).leaves
    if wanted.fill_null is not None:
        hint = "fill nulls with pyarrow.compute.fill_null, or take another format"
        raise ConfigError('format="arrow" delivers nulls as they are', hint=hint, argument="fill_null")
    return ()


def _schema(source: DataSource, wanted: Projection) -> Any:
    """Return the Arrow schema of the chosen columns, those of folders among them."""
    fields = {f.name: f for f in source.schema} | {p.name: pa.field(p.name, p.type) for p in source.partitions}
    return pa.schema([fields[c] for c in chosen_columns(source, wanted.columns)])


def _with_partitions(source: DataSource, columns: tuple[str, ...], batch: Any, file: int) -> Any:
    """Return the batch with the columns that the names of folders hold, everything in the order asked for."""
    for partition in source.partitions:
        if partition.name in columns:
            value = pa.scalar(partition.values[file], partition.type)
            batch = batch.append_column(partition.name, pa.repeat(value, batch.num_rows))
    return batch.select(list(columns))


def make_read_spec(source: DataSource, wanted: Projection, note: ThreadProgress, memory_limit: int) -> ReadSpec:
    """Return how to read a source. Decodes a few rows, to see how large they are and which lists have one length.

    What can be delivered does not depend on the limit; only looking at the first rows must not exceed it.
    """
    columns = chosen_columns(source, wanted.columns)
    manifest = source.manifest
    facts = {f.name: f for f in manifest.columns}
    stored = tuple(c for c in columns if c in facts) or source.schema.names[:1]
    decoding = _decoding(source, columns, stored, memory_limit)
    vague = [f.name for f in source.schema if f.name in stored and not _is_fixed_width(f.type)]
    sample = _first_batches(decoding, vague, source, _SAMPLE_ROWS, note) if vague else None
    row_nbytes = _row_nbytes(source, columns, sample)
    max_rows = _VAGUE_PIECE_ROWS if vague else _PIECE_ROWS
    page_nbytes = _page_nbytes(source, stored, row_nbytes)
    piece_nbytes = _OBJECT_PIECE_NBYTES if page_nbytes else PIECE_NBYTES
    piece_rows = max(1, min(piece_nbytes // row_nbytes, max_rows))
    decoding = replace(decoding, piece_rows=piece_rows, page_nbytes=page_nbytes)
    # What an open column chunk holds: a decompressed page, its dictionary and a read buffer, if it is large.
    open_nbytes = sum(min(_OPEN_NBYTES, 2 * facts[c].nbytes // max(manifest.num_fragments, 1)) for c in stored)
    common = {"row_nbytes": row_nbytes, "open_nbytes": open_nbytes}
    if wanted.format == "arrow":
        return ReadSpec(decoding=decoding, block=ArrowRows, leaves=(), **common)
    converter = _converter(source, decoding, wanted, sample, note)
    # What arrays take is known from their shapes, whatever a manifest says of the size of a column.
    common["row_nbytes"] = max(row_nbytes, sum(_leaf_nbytes(leaf) for leaf in converter.leaves))

    def to_arrays(batch: Any, file: int, where: PieceLocation) -> Arrays:
        if source.partitions:
            batch = _with_partitions(source, columns, batch, file)
        return Arrays(converter(batch, where), batch.num_rows, batch.get_total_buffer_size())

    decoding = replace(decoding, to_block=to_arrays)
    return ReadSpec(decoding=decoding, block=Arrays, leaves=converter.leaves, **common)


def _row_nbytes(source: DataSource, columns: Sequence[str], sample: Any) -> int:
    """Return what a row takes: what the footers say or what the first rows show, whichever is more.

    Footers know the size of values that are all alike only once: a dictionary of one long text counts as one text.
    """
    facts = {f.name: f for f in source.manifest.columns}
    told = sum(facts[c].nbytes for c in columns if c in facts) // max(source.manifest.num_rows, 1)
    seen = sample.get_total_buffer_size() // max(sample.num_rows, 1) if sample is not None else 0
    return max(1, told, seen) + 8 * len(source.partitions)


def _decoding(source: DataSource, columns: tuple[str, ...], stored: Sequence[str], memory_limit: int) -> Decoding:
    """Return how to decode a few rows, as Arrow."""
    manifest = source.manifest
    file_rows, first_rows = [0] * len(manifest.files), []
    for file, num_rows in zip(manifest.fragment_file, manifest.fragment_rows, strict=True):
        first_rows.append(file_rows[file])
        file_rows[file] += num_rows
    return Decoding(
        format=Parquet(),
        files=manifest.files,
        paths=source.paths,
        fragment_file=manifest.fragment_file,
        fragment_group=manifest.fragment_group,
        first_rows=first_rows,
        fragment_rows=manifest.fragment_rows,
        file_rows=file_rows,
        schema=source.schema,
        columns=tuple(stored),
        piece_rows=_SAMPLE_ROWS,
        limits=ReadLimits.of(memory_limit),
        page_nbytes=0,
        to_block=lambda batch, file, _: ArrowRows(
            pa.Table.from_batches([_with_partitions(source, columns, batch, file)])
        ),
    )


def _leaf_nbytes(leaf: Leaf) -> int:
    """Return what a row of an array takes; for texts and ragged rows, what a reference to them takes."""
    return (
        math.prod(leaf.shape) * leaf.dtype.itemsize
        if leaf.kind in (LeafKind.DENSE, LeafKind.TIME)
        else _REFERENCE_NBYTES
    )


def _is_fixed_width(kind: Any) -> bool:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    known = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in known)


def _page_nbytes(source: DataSource, columns: Sequence[str], row_nbytes: int) -> int:
    """Return what a page takes if most bytes of a row are texts or bytes, one Python object for each value; or 0."""
    facts = {f.name: f.nbytes for f in source.manifest.columns if f.name in columns}
    objects = sum(facts[f.name] for f in source.schema if f.name in facts and _holds_texts(f.type))
    mean_rows = source.manifest.num_rows // max(source.manifest.num_fragments, 1)
    return row_nbytes * max(1, min(mean_rows, _PAGE_ROWS)) if 2 * objects > sum(facts.values()) else 0


def _holds_texts(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_texts(kind.field(index).type) for index in range(kind.num_fields))
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    return any(test(kind) for test in tests)


def _converter(
    source: DataSource, decoding: Decoding, wanted: Projection, sample: Any, note: ThreadProgress
) -> Converter:
    facts = {f.name: f for f in source.manifest.columns}
    schema = _schema(source, wanted)
    nested = [f for f in schema if f.name in facts and pa.types.is_nested(f.type) and f.name not in wanted.ragged]
    lists = [f.name for f in nested]
    shapes: dict[str, tuple[int, ...]] = {}
    if lists:
        # Footers tell how many values a column has, not how they are spread over rows: three rows of 1, 2 and 3 values
        # look like three rows of 2. A small dataset is looked at as a whole; in a large one, the same round number in
        # every row group and in the first rows is no accident, and each piece is checked all the same.
        if sum(facts[c].values for c in lists) <= _SURE_VALUES:
            sample = _first_batches(decoding, lists, source, None, note)
        shapes = infer_shapes(pa.schema(nested), facts, sample)
    return Converter(schema, shapes=shapes, fill_null=wanted.fill_null)


def _first_batches(
    decoding: Decoding, columns: list[str], source: DataSource, num_rows: int | None, note: ThreadProgress
) -> Any:
    """Return the first rows of some columns, or all rows, as one record batch.

    Damage is passed over: it is reported when its turn comes, after the rows before it were delivered.
    """
    decoding = replace(
        decoding,
        columns=tuple(columns),
        piece_rows=num_rows or decoding.piece_rows,
        to_block=lambda batch, _, __: ArrowRows(pa.Table.from_batches([batch.select(columns)])),
    )
    tables: list[Any] = []
    nbytes = 0
    for fragment, size in enumerate(source.manifest.fragment_rows):
        reader = StreamReader(decoding)
        blocks: Iterator[Any] = reader.read(fragment, range(min(size, num_rows or size)), note)
        with contextlib.suppress(DataError, SourceChanged):
            for block in blocks:
                tables.append(block.table)
                nbytes += block.nbytes
                if num_rows is not None and nbytes > _SAMPLE_NBYTES:
                    break
        reader.close()
        if num_rows is not None:
            break
    batches = pa.concat_tables(tables).combine_chunks().to_batches() if tables else []
    return batches[0] if batches else None
