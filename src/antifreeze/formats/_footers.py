"""Reads the footer of a Parquet file: for a manifest, rows, schema and sizes; to read the file, where its chunks are.

Arrow trusts a footer. A wrong one that still decodes makes it silently deliver other rows: a chunk that starts where
another column's does, a group with fewer rows than its pages hold. Four rules reject nearly all of these:

- the rows of the file are those of its groups together;
- a chunk of a column without lists has one value for each row;
- chunks lie between the first bytes of the file and its footer;
- no two chunks share a byte.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import CorruptFile, SourceNotFound, UnreadableFile, open_regular
from antifreeze.formats._chunks import ChunkField, FooterIndex, GroupChunks, decode
from antifreeze.formats._leaves import plain
from antifreeze.formats._pages import Chunk, LeafType

# Nearly all footers fit, and a disk reads this much as fast as one byte.
_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_END_BYTES = 8
# 100,000 column chunks take about 10 MB.
_MAX_FOOTER_BYTES = 128 << 20

_FIRST_BYTE = 4
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_CHUNK_FIELDS = (
    ChunkField.CODEC,
    ChunkField.NUM_VALUES,
    ChunkField.COMPRESSED_NBYTES,
    ChunkField.DATA_PAGE_OFFSET,
    ChunkField.DICTIONARY_PAGE_OFFSET,
)
"""In the order of the fields of ``Chunk``."""
# A look at each of 10,000 chunks takes as long as Arrow needs to open a file of 20,000. Files with more are measured
# by their first row groups.
_MAX_CHUNKS_MEASURED = 10_000
_LARGE_FOOTER_NBYTES = 4 << 20
_KEPT_CHUNKS = 1000
_MAX_CHECKED_CHUNKS = 100_000
"""Files with more chunks are not searched for chunks that overlap: it would take longer than reading some of them."""
_MAX_KNOWN_LEAVES = 50_000
"""Schemas with more are parsed for each file: kept, a few of them would take hundreds of megabytes."""
_MAX_KNOWN_SCHEMAS = 8
"""A handful: metadata may be another one in every file, and files that all differ are compared with these."""

# A str or bytes object, beside its characters.
_OBJECT_BYTES = 50
_POINTERS_BYTES = 16
_DECIMAL_BYTES = 8

# Rows or bytes that no file has.
_MAX_CLAIMED = 2**48
# What estimates are cut to: a claim of more is no better known.
_MAX_ESTIMATED = 2.0**60

_COPY_HINT = "copy or write the file again, or leave it out"

# Everything that a damaged footer was seen to raise; Arrow raises OSError for thrift that does not parse.
_PARSE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, LookupError)


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


# -- schemas -------------------------------------------------------------------------------------------------------


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


def _layout_of(schema: pa.Schema) -> Layout:
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


class SchemaFacts:
    """What is computed once for all files of a schema."""

    # Invariant: replaced, never changed, so that threads need no lock, which a fork could leave held forever.
    known: ClassVar[dict[bytes, SchemaFacts]] = {}
    """The last ones, by the key of their schema."""

    def __init__(self, layout: Layout, parquet_schema: Any) -> None:
        self.layout = layout
        self._parquet_schema = parquet_schema

    @functools.cached_property
    def leaves(self) -> tuple[LeafType, ...]:
        """The leaves of all columns. Listing ten thousand takes a while, and a manifest does not need them."""
        return tuple(map(_leaf_type, map(self._parquet_schema.column, range(self.layout.num_leaves))))

    @functools.cached_property
    def leaf_ranges(self) -> dict[str, range]:
        """The leaves of each column."""
        starts = [*self.layout.first_leaf.tolist(), self.layout.num_leaves]
        ranges = itertools.starmap(range, itertools.pairwise(starts))
        return dict(zip(self.layout.schema.names, ranges, strict=True))


def _leaf_type(column: Any) -> LeafType:
    kind = column.physical_type
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
    return LeafType(name=column.path, width=width, max_repetition=column.max_repetition_level)


def _schema_facts(index: FooterIndex) -> SchemaFacts:
    """Return the facts of a file's schema. Files with the same bytes for it share them; with an equal one, its layout.

    Any number of threads may call this.

    Tried: ``ParquetSchema.equals``. It compares the names of leaves, which are the same for all columns of lists.
    """
    known = SchemaFacts.known
    if (facts := known.get(index.schema_key)) is not None:
        return facts
    file = pq.ParquetFile(pa.BufferReader(index.file_with(None)))
    schema = file.schema_arrow.remove_metadata()
    equal = (other.layout for other in known.values() if other.layout.schema.equals(schema))
    layout = next(equal, None) or _layout_of(schema)
    if file.metadata.num_columns != layout.num_leaves:
        raise ValueError(f"{file.metadata.num_columns} leaf columns are stored, {layout.num_leaves} are described")
    facts = SchemaFacts(layout, file.schema)
    if layout.num_leaves <= _MAX_KNOWN_LEAVES:
        last = list(known.items())[1 - _MAX_KNOWN_SCHEMAS :]
        SchemaFacts.known = {**dict(last), index.schema_key: facts}
    return facts


# -- bytes ---------------------------------------------------------------------------------------------------------


@contextmanager
def _parsing(path: str) -> Iterator[None]:
    """Turn whatever a damaged footer raises into ``CorruptFile``."""
    try:
        yield
    except _PARSE_ERRORS as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        if "ncrypt" in reason:
            raise _encrypted(path) from error
        raise _corrupt(path, f"has a footer that cannot be used: {reason}") from error


def _corrupt(path: str, what: str, hint: str = _COPY_HINT) -> CorruptFile:
    return CorruptFile(f"{path} {what}", hint=hint, file=path, row_group=None)


def _encrypted(path: str) -> CorruptFile:
    return _corrupt(path, "is encrypted", "encrypted Parquet files are not supported; write it without encryption")


def _read_footer_bytes(path: str) -> tuple[bytes, int]:
    """Return the bytes of a footer, without the marks behind it, which are checked; and where it begins in the file."""
    try:
        handle = open_regular(path)
        try:
            size = os.fstat(handle).st_size
            tail = os.pread(handle, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            head = b"" if tail.endswith(_MAGIC) else os.pread(handle, _END_BYTES, 0)
            _check_marks(path, size, head, tail)
            nbytes = _footer_bytes(tail)
            if nbytes <= len(tail):
                return tail[-nbytes:-_END_BYTES], size - nbytes
            return os.pread(handle, nbytes - _END_BYTES, size - nbytes), size - nbytes
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        hint = "files were removed while they were read; start again"
        raise SourceNotFound(f"{path} has vanished", hint=hint, path=path) from error
    except OSError as error:
        hint = "check the permissions of the file and the health of the disk or mount"
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}", hint=hint, file=path) from error


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def _check_marks(path: str, size: int, head: bytes, tail: bytes) -> None:
    if size == 0:
        raise _corrupt(path, "has zero bytes")
    if tail.endswith(_MAGIC_ENCRYPTED):
        raise _encrypted(path)
    if not tail.endswith(_MAGIC):
        if not head.startswith(_MAGIC):
            hint = "take it out of the folder, or name the files to read by a list or a glob"
            raise _corrupt(path, "is not a Parquet file: it neither begins nor ends as one", hint)
        raise _corrupt(path, "has no footer: it was probably cut off while it was written or copied")
    if size < _END_BYTES + len(_MAGIC):
        raise _corrupt(path, f"is too short for a Parquet file ({size} bytes)")
    if size >= _footer_bytes(tail) > _MAX_FOOTER_BYTES:
        hint = "write the file with fewer columns or row groups"
        claim = f"{_footer_bytes(tail):,} bytes, expected at most {_MAX_FOOTER_BYTES:,}"
        raise _corrupt(path, f"has a footer of {claim}", hint)
    if _footer_bytes(tail) > size:
        raise _corrupt(path, f"claims a footer of {_footer_bytes(tail):,} bytes but has only {size:,}")


def _index(footer: bytes, max_chunks: int) -> FooterIndex:
    index = FooterIndex(footer, max_chunks)
    if index.num_rows != (num_rows := sum(index.group_rows)):
        raise ValueError(f"it claims {index.num_rows:,} rows, and its row groups have {num_rows:,}")
    return index


# -- for a manifest ------------------------------------------------------------------------------------------------


def read_footer(path: str) -> Footer:
    """Read the footer of one file. Files with equal schemas share one schema object, and compare by identity."""
    footer, _ = _read_footer_bytes(path)
    with _parsing(path):
        index = _index(footer, _MAX_CHUNKS_MEASURED)
        return _measure(_schema_facts(index).layout, index)


def _measure(layout: Layout, index: FooterIndex) -> Footer:
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


# -- for reading ---------------------------------------------------------------------------------------------------


class Contents:
    """A file's footer, for reading its row groups. Threads may share it."""

    def __init__(self, footer: bytes, data_stop: int) -> None:
        self.data_stop = data_stop
        """Where the footer begins."""
        self._index = _index(footer, _KEPT_CHUNKS)
        self._facts = _schema_facts(self._index)
        self.schema = self._facts.layout.schema
        self.group_rows, self.num_rows = self._index.group_rows, self._index.num_rows
        # Arrow takes many times a footer's bytes to hold it: of a large one, it is given a row group at a time.
        is_large = len(footer) > _LARGE_FOOTER_NBYTES
        self._metadata: Any = None if is_large else pq.read_metadata(pa.BufferReader(self._index.file()))
        self._groups: list[list[Chunk]] = []
        if len(self.group_rows) * len(self._facts.leaves) <= _MAX_CHECKED_CHUNKS:
            self._check_overlaps()

    def metadata(self, group: int) -> tuple[Any, int]:
        """Return what Arrow needs to read a row group, and the number that the group has there."""
        if self._metadata is not None:
            return self._metadata, group
        return pq.read_metadata(pa.BufferReader(self._index.file_with(group))), 0

    def group(self, number: int) -> list[Chunk]:
        """Return the chunks of a row group, checked: one for each leaf of the schema."""
        if number < len(self._groups):
            return self._groups[number]
        kept = self._index.first_groups
        group = kept[number] if number < len(kept) else self._index.read(number)
        if group.num_chunks != len(self._facts.leaves):
            expected = len(self._facts.leaves)
            raise ValueError(f"row group {number} has {group.num_chunks} column chunks, expected {expected}")
        chunks = list(map(Chunk, *map(group.numbers, _CHUNK_FIELDS)))
        if group.num_rows:
            self._check_group(number, chunks)
        return chunks

    def chunks(self, number: int, columns: Sequence[str]) -> Iterator[tuple[LeafType, Chunk]]:
        """Yield the leaves below some columns, and where they are in a row group."""
        group = self.group(number)
        for column in columns:
            if column not in self._facts.leaf_ranges:
                raise ValueError(f'it has no column "{column}"')
            for leaf in self._facts.leaf_ranges[column]:
                yield self._facts.leaves[leaf], group[leaf]

    def _check_group(self, number: int, chunks: list[Chunk]) -> None:
        num_rows = self.group_rows[number]
        for leaf, chunk in zip(self._facts.leaves, chunks, strict=True):
            is_wrong = chunk.num_values < num_rows if leaf.max_repetition else chunk.num_values != num_rows
            if is_wrong or num_rows < 0:
                what = f"row group {number} has {num_rows:,} rows"
                raise ValueError(f'{what}, and its column "{leaf.name}" has {chunk.num_values:,} values')
            if not (chunk.start >= _FIRST_BYTE and chunk.compressed_nbytes > 0 and chunk.stop <= self.data_stop):
                raise ValueError(f'column "{leaf.name}" of row group {number} lies outside of the file')

    def _check_overlaps(self) -> None:
        groups = [self.group(number) for number in range(len(self.group_rows))]
        filled = itertools.compress(groups, self.group_rows)
        extents = sorted((chunk.start, chunk.stop) for chunks in filled for chunk in chunks)
        if any(begin < stop for (_, stop), (begin, _) in itertools.pairwise(extents)):
            raise ValueError("two column chunks overlap")
        if len(extents) <= _KEPT_CHUNKS:
            self._groups = groups


def read_contents(path: str) -> Contents:
    """Read and check the footer of a file.

    Raises:
        CorruptFile: it does not parse, or contradicts itself.
    """
    footer = _read_footer_bytes(path)
    with _parsing(path):
        return Contents(*footer)
