"""What a footer says of a file that is about to be read, checked for what cannot be true.

Arrow believes a footer. One that lies within the bounds of what decodes makes it deliver other rows without a word: a
chunk that begins where another column's does, a group with fewer rows than its pages hold. Four rules refuse nearly all
of these:

- the rows of the file are those of its groups together;
- a chunk of a column without lists has one value for each row;
- chunks lie between the first bytes of the file and its footer;
- no two chunks share a byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.formats._chunks import FooterWalk, GroupChunks
from antifreeze.formats._footers import parsing, read_tail
from antifreeze.formats._measure import layout_of
from antifreeze.formats._pages import Chunk
from antifreeze.formats._weights import LeafType

_FIRST_BYTE = 4
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """A file's footer, for reading its row groups."""

    metadata: Any
    schema: pa.Schema
    groups: tuple[GroupChunks, ...]
    leaves: tuple[LeafType, ...]
    leaf_ranges: dict[str, range]
    """The leaves of each column."""
    data_stop: int
    """Where the footer begins."""

    def leaves_of(self, columns: Sequence[str]) -> Iterator[int]:
        """Yield the numbers of the leaves below some columns."""
        for column in columns:
            if column not in self.leaf_ranges:
                raise ValueError(f'it has no column "{column}"')
            yield from self.leaf_ranges[column]

    def chunk(self, group: int, leaf: int) -> Chunk:
        """Return where a leaf column of a row group is."""
        chunks = self.groups[group]
        return Chunk(
            codec=chunks.codec[leaf],
            num_values=chunks.num_values[leaf],
            compressed_nbytes=chunks.compressed_nbytes[leaf],
            data_page_offset=chunks.data_page_offset[leaf],
            dictionary_page_offset=chunks.dictionary_page_offset[leaf],
        )


def read_contents(path: str) -> Contents:
    """Read and check the footer of a file.

    Raises:
        CorruptFile: it does not parse, or says what cannot be true.
    """
    tail = read_tail(path)
    footer = tail.footer
    with parsing(path):
        metadata = pq.read_metadata(pa.BufferReader(tail.data))
        schema = metadata.schema.to_arrow_schema()
        layout = layout_of(schema, [])
        leaves = tuple(_leaf_types(metadata))
        if len(leaves) != layout.num_leaves:
            raise ValueError(f"{len(leaves)} leaf columns are stored, {layout.num_leaves} are described")
        starts = [*layout.first_leaf.tolist(), layout.num_leaves]
        ranges = {name: range(starts[i], starts[i + 1]) for i, name in enumerate(schema.names)}
        walk = FooterWalk(footer)
        groups = tuple(walk)
        _check(walk, groups, leaves, tail.data_stop)
    return Contents(
        metadata=metadata, schema=schema, groups=groups, leaves=leaves, leaf_ranges=ranges, data_stop=tail.data_stop
    )


def _leaf_types(metadata: Any) -> Iterator[LeafType]:
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        kind = column.physical_type
        width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
        yield LeafType(name=column.path, width=width, max_repetition=column.max_repetition_level)


def _check(walk: FooterWalk, groups: Sequence[GroupChunks], leaves: Sequence[LeafType], data_stop: int) -> None:
    if walk.num_rows != sum(group.num_rows for group in groups):
        raise ValueError(
            f"it claims {walk.num_rows:,} rows, and its row groups have {sum(g.num_rows for g in groups):,}"
        )
    begins, sizes = [], []
    flat = np.array([not leaf.max_repetition for leaf in leaves], np.bool_)
    for number, group in enumerate(groups):
        if group.num_chunks != len(leaves):
            raise ValueError(f"row group {number} has {group.num_chunks} column chunks, expected {len(leaves)}")
        if not group.num_rows:
            continue
        values = np.asarray(group.num_values)
        if group.num_rows < 0 or (values[flat] != group.num_rows).any() or (values < group.num_rows).any():
            raise ValueError(f"row group {number} has {group.num_rows:,} rows and a column of another number of values")
        data, dictionary = np.asarray(group.data_page_offset), np.asarray(group.dictionary_page_offset)
        begins.append(np.where((dictionary > 0) & (dictionary < data), dictionary, data))
        sizes.append(np.asarray(group.compressed_nbytes))
    if begins:
        _check_extents(np.concatenate(begins), np.concatenate(sizes), data_stop)


def _check_extents(begins: Any, sizes: Any, data_stop: int) -> None:
    # Sizes first, and each by itself: a sum of two claims may overflow.
    if (sizes <= 0).any() or (sizes > data_stop).any() or (begins < _FIRST_BYTE).any() or (begins > data_stop).any():
        raise ValueError("a column chunk lies outside of the file")
    order = np.argsort(begins, kind="stable")
    ends = (begins + sizes)[order]
    if ends.max() > data_stop:
        raise ValueError("a column chunk lies outside of the file")
    if (begins[order][1:] < ends[:-1]).any():
        raise ValueError("two column chunks overlap")
