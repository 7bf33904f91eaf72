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
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import CorruptFile, SourceNotFound, UnreadableFile, open_regular
from antifreeze.formats._chunks import ChunkField, FooterIndex
from antifreeze.formats._measure import Footer, Layout, layout_of, measure
from antifreeze.formats._pages import Chunk
from antifreeze.formats._weights import LeafType

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
_MAX_KNOWN_SCHEMAS = 8
"""A handful: metadata may be another one in every file, and files that all differ are compared with these."""

_COPY_HINT = "copy or write the file again, or leave it out"

# Everything that a damaged footer was seen to raise; Arrow raises OSError for thrift that does not parse.
_PARSE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, LookupError)


class FooterBytes(NamedTuple):
    """A footer as it is in the file, without its length and the mark at the end."""

    data: bytes
    start: int
    """Where it begins in the file, and where the data ends."""


class SchemaFacts:
    """What is computed once for all files of a schema."""

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
        return {name: range(*pair) for name, pair in zip(self.layout.schema.names, pairwise(starts), strict=True)}


def _leaf_type(column: Any) -> LeafType:
    kind = column.physical_type
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
    return LeafType(name=column.path, width=width, max_repetition=column.max_repetition_level)


_known_schemas: OrderedDict[tuple[bytes, bytes], SchemaFacts] = OrderedDict()


def _schema_facts(index: FooterIndex) -> SchemaFacts:
    """Return the facts of a file's schema. Files with the same bytes for it share them; with an equal one, its layout.

    Any number of threads may call this.

    Tried: ``ParquetSchema.equals``. It compares the names of leaves, which are the same for all columns of lists.
    """
    if (known := _known_schemas.get(index.schema_key)) is not None:
        return known
    file = pq.ParquetFile(pa.BufferReader(index.file_with(None)))
    schema = file.schema_arrow.remove_metadata()
    equal = (other.layout for other in list(_known_schemas.values()) if other.layout.schema.equals(schema))
    layout = next(equal, None) or layout_of(schema)
    if file.metadata.num_columns != layout.num_leaves:
        raise ValueError(f"{file.metadata.num_columns} leaf columns are stored, {layout.num_leaves} are described")
    facts = _known_schemas[index.schema_key] = SchemaFacts(layout, file.schema)
    if len(_known_schemas) > _MAX_KNOWN_SCHEMAS:
        with suppress(KeyError):  # another thread was faster
            _known_schemas.popitem(last=False)
    return facts


def read_footer(path: str) -> Footer:
    """Read the footer of one file. Files with equal schemas share one schema object, and compare by identity."""
    footer = _read_footer_bytes(path)
    with _parsing(path):
        index = _index(footer, _MAX_CHUNKS_MEASURED)
        return measure(_schema_facts(index).layout, index)


def _index(footer: FooterBytes, max_chunks: int) -> FooterIndex:
    index = FooterIndex(footer.data, max_chunks)
    if index.num_rows != (num_rows := sum(index.group_rows)):
        raise ValueError(f"it claims {index.num_rows:,} rows, and its row groups have {num_rows:,}")
    return index


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


def _read_footer_bytes(path: str) -> FooterBytes:
    """Return the bytes of a footer, without the marks behind it, which are checked."""
    try:
        handle = open_regular(path)
        try:
            size = os.fstat(handle).st_size
            tail = os.pread(handle, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            head = b"" if tail.endswith(_MAGIC) else os.pread(handle, _END_BYTES, 0)
            _check_marks(path, size, head, tail)
            nbytes = _footer_bytes(tail)
            if nbytes <= len(tail):
                return FooterBytes(tail[-nbytes:-_END_BYTES], size - nbytes)
            return FooterBytes(os.pread(handle, nbytes - _END_BYTES, size - nbytes), size - nbytes)
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


class Group(NamedTuple):
    """One row group, checked."""

    num_rows: int
    chunks: list[Chunk]
    """One for each leaf of the schema."""


class Contents:
    """A file's footer, for reading its row groups. Threads may share it."""

    def __init__(self, footer: FooterBytes) -> None:
        self.data_stop = footer.start
        """Where the footer begins."""
        self._index = _index(footer, _KEPT_CHUNKS)
        self._facts = _schema_facts(self._index)
        self.schema = self._facts.layout.schema
        self.num_groups, self.num_rows = len(self._index.group_rows), self._index.num_rows
        # Arrow takes many times a footer's bytes to hold it: of a large one, it is given a row group at a time.
        is_large = len(footer.data) > _LARGE_FOOTER_NBYTES
        self._metadata: Any = None if is_large else pq.read_metadata(pa.BufferReader(self._index.file()))
        self._groups: list[Group] = []
        if self.num_groups * len(self._facts.leaves) <= _MAX_CHECKED_CHUNKS:
            self._check_overlaps()

    def metadata(self, group: int) -> tuple[Any, int]:
        """Return what Arrow needs to read a row group, and the number that the group has there."""
        if self._metadata is not None:
            return self._metadata, group
        return pq.read_metadata(pa.BufferReader(self._index.file_with(group))), 0

    def group(self, number: int) -> Group:
        """Return a row group."""
        if number < len(self._groups):
            return self._groups[number]
        kept = self._index.first_groups
        group = kept[number] if number < len(kept) else self._index.read(number)
        if group.num_chunks != len(self._facts.leaves):
            expected = len(self._facts.leaves)
            raise ValueError(f"row group {number} has {group.num_chunks} column chunks, expected {expected}")
        found = Group(group.num_rows, list(map(Chunk, *map(group.numbers, _CHUNK_FIELDS))))
        if found.num_rows:
            self._check_group(number, found)
        return found

    def chunks(self, group: Group, columns: Sequence[str]) -> Iterator[tuple[LeafType, Chunk]]:
        """Yield the leaves below some columns, and where they are in a row group."""
        for column in columns:
            if column not in self._facts.leaf_ranges:
                raise ValueError(f'it has no column "{column}"')
            for leaf in self._facts.leaf_ranges[column]:
                yield self._facts.leaves[leaf], group.chunks[leaf]

    def _check_group(self, number: int, group: Group) -> None:
        for leaf, chunk in zip(self._facts.leaves, group.chunks, strict=True):
            is_wrong = chunk.num_values < group.num_rows if leaf.max_repetition else chunk.num_values != group.num_rows
            if is_wrong or group.num_rows < 0:
                what = f"row group {number} has {group.num_rows:,} rows"
                raise ValueError(f'{what}, and its column "{leaf.name}" has {chunk.num_values:,} values')
            if not (chunk.start >= _FIRST_BYTE and chunk.compressed_nbytes > 0 and chunk.stop <= self.data_stop):
                raise ValueError(f'column "{leaf.name}" of row group {number} lies outside of the file')

    def _check_overlaps(self) -> None:
        groups = [self.group(number) for number in range(self.num_groups)]
        extents = sorted((chunk.start, chunk.stop) for group in groups if group.num_rows for chunk in group.chunks)
        if any(begin < stop for (_, stop), (begin, _) in pairwise(extents)):
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
        return Contents(footer)
