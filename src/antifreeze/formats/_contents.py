"""Checks the footer of a file that is about to be read for contradictions.

Arrow trusts a footer. A wrong one that still decodes makes it silently deliver other rows: a chunk that starts where
another column's does, a group with fewer rows than its pages hold. Four rules reject nearly all of these:

- the rows of the file are those of its groups together;
- a chunk of a column without lists has one value for each row;
- chunks lie between the first bytes of the file and its footer;
- no two chunks share a byte.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.formats._chunks import FooterWalk
from antifreeze.formats._footers import FooterBytes, parsing, read_footer_bytes
from antifreeze.formats._measure import layout_of
from antifreeze.formats._pages import Chunk
from antifreeze.formats._weights import LeafType

_FIRST_BYTE = 4
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LARGE_FOOTER_NBYTES = 4 << 20
_KEPT_CHUNKS = 1000
_MAX_KNOWN_SCHEMAS = 4
_MAX_CHECKED_CHUNKS = 100_000
"""Files with more chunks are not searched for chunks that overlap: it would take longer than reading some of them."""


class SchemaFacts(NamedTuple):
    """What is computed once for all files of a schema."""

    schema: pa.Schema
    leaves: tuple[LeafType, ...]
    leaf_ranges: dict[str, range]
    """The leaves of each column."""


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
        self._index = FooterWalk(footer.data).index(_KEPT_CHUNKS)
        # Arrow takes many times a footer's bytes to hold it: of a large one, it is given a row group at a time.
        self._is_large = len(footer.data) > _LARGE_FOOTER_NBYTES
        whole = self._index.file_without_groups() if self._is_large else self._index.file()
        self._metadata: Any = pq.read_metadata(pa.BufferReader(whole))
        self._facts = _schema_facts(self._index.schema_key, self._metadata.schema)
        self.schema = self._facts.schema
        self.num_groups, self.num_rows = len(self._index.group_rows), self._index.num_rows
        if self.num_rows != (num_rows := sum(self._index.group_rows)):
            raise ValueError(f"it claims {self.num_rows:,} rows, and its row groups have {num_rows:,}")
        self._groups: list[Group] = []
        if self.num_groups * len(self._facts.leaves) <= _MAX_CHECKED_CHUNKS:
            self._check_overlaps()

    def metadata(self, group: int) -> tuple[Any, int]:
        """Return what Arrow needs to read a row group, and the number that the group has there."""
        if not self._is_large:
            return self._metadata, group
        return pq.read_metadata(pa.BufferReader(self._index.file_with_group(group))), 0

    def group(self, number: int) -> Group:
        """Return a row group."""
        if number < len(self._groups):
            return self._groups[number]
        kept = self._index.first_groups
        group = kept[number] if number < len(kept) else self._index.read(number)
        if group.num_chunks != len(self._facts.leaves):
            expected = len(self._facts.leaves)
            raise ValueError(f"row group {number} has {group.num_chunks} column chunks, expected {expected}")
        fields = (group.codec, group.num_values, group.compressed_nbytes)
        offsets = (group.data_page_offset, group.dictionary_page_offset)
        found = Group(group.num_rows, list(map(Chunk, *fields, *offsets)))
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
    footer = read_footer_bytes(path)
    with parsing(path):
        return Contents(footer)


_known_schemas: OrderedDict[tuple[bytes, bytes], SchemaFacts] = OrderedDict()


def _schema_facts(key: tuple[bytes, bytes], parquet_schema: Any) -> SchemaFacts:
    """Return the cached layout of a schema.

    Tried: ``ParquetSchema.equals``. It compares the names of leaves, which are the same for all columns of lists.
    """
    if (known := _known_schemas.get(key)) is not None:
        return known
    schema = parquet_schema.to_arrow_schema()
    layout = layout_of(schema, [])
    leaves = tuple(_leaf_types(parquet_schema))
    if len(leaves) != layout.num_leaves:
        raise ValueError(f"{len(leaves)} leaf columns are stored, {layout.num_leaves} are described")
    starts = [*layout.first_leaf.tolist(), layout.num_leaves]
    ranges = {name: range(starts[i], starts[i + 1]) for i, name in enumerate(schema.names)}
    facts = _known_schemas[key] = SchemaFacts(schema, leaves, ranges)
    if len(_known_schemas) > _MAX_KNOWN_SCHEMAS:
        with suppress(KeyError):  # another thread was faster
            _known_schemas.popitem(last=False)
    return facts


def _leaf_types(parquet_schema: Any) -> Iterator[LeafType]:
    for number in range(len(parquet_schema)):
        column = parquet_schema.column(number)
        kind = column.physical_type
        width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
        yield LeafType(name=column.path, width=width, max_repetition=column.max_repetition_level)
