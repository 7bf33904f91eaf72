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
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.formats._chunks import FooterWalk, GroupChunks
from antifreeze.formats._footers import FooterBytes, parsing, read_footer_bytes
from antifreeze.formats._measure import layout_of
from antifreeze.formats._pages import Chunk
from antifreeze.formats._weights import LeafType

Integers = npt.NDArray[np.int64]

_FIRST_BYTE = 4
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LARGE_FOOTER_NBYTES = 4 << 20
_MAX_CHECKED_CHUNKS = 100_000
"""Files with more chunks are not searched for chunks that overlap: it would take longer than reading some of them."""


class Contents:
    """A file's footer, for reading its row groups. Threads may share it."""

    def __init__(self, footer: FooterBytes) -> None:
        self.data_stop = footer.start
        """Where the footer begins."""
        self._index = FooterWalk(footer.data).index(0)
        # Arrow takes many times a footer's bytes to hold it: of a large one, it is given a row group at a time.
        self._is_large = len(footer.data) > _LARGE_FOOTER_NBYTES
        whole = self._index.file_without_groups() if self._is_large else self._index.file()
        self._metadata: Any = pq.read_metadata(pa.BufferReader(whole))
        self.schema: pa.Schema = self._metadata.schema.to_arrow_schema()
        self.num_groups, self.num_rows = len(self._index.group_rows), self._index.num_rows
        self._leaves = tuple(_leaf_types(self._metadata))
        layout = layout_of(self.schema, [])
        if len(self._leaves) != layout.num_leaves:
            raise ValueError(f"{len(self._leaves)} leaf columns are stored, {layout.num_leaves} are described")
        starts = [*layout.first_leaf.tolist(), layout.num_leaves]
        self._leaf_ranges = {name: range(starts[i], starts[i + 1]) for i, name in enumerate(self.schema.names)}
        self._is_flat = np.array([not leaf.max_repetition for leaf in self._leaves], np.bool_)
        if self.num_rows != (num_rows := sum(self._index.group_rows)):
            raise ValueError(f"it claims {self.num_rows:,} rows, and its row groups have {num_rows:,}")
        if self.num_groups * len(self._leaves) <= _MAX_CHECKED_CHUNKS:
            self._check_overlaps()

    def metadata(self, group: int) -> tuple[Any, int]:
        """Return what Arrow needs to read a row group, and the number that the group has there."""
        if not self._is_large:
            return self._metadata, group
        return pq.read_metadata(pa.BufferReader(self._index.file_with_group(group))), 0

    def group(self, number: int) -> GroupChunks:
        """Return a row group, checked."""
        group = self._index.read(number)
        self._check_group(number, group)
        return group

    def chunks(self, group: GroupChunks, columns: Sequence[str]) -> Iterator[tuple[LeafType, Chunk]]:
        """Yield the leaves below some columns, and where they are in a row group."""
        numbers = (group.codec, group.num_values, group.compressed_nbytes)
        offsets = (group.data_page_offset, group.dictionary_page_offset)
        for column in columns:
            if column not in self._leaf_ranges:
                raise ValueError(f'it has no column "{column}"')
            for leaf in self._leaf_ranges[column]:
                codec, num_values, nbytes = (field[leaf] for field in numbers)
                data, dictionary = (field[leaf] for field in offsets)
                chunk = Chunk(
                    codec=codec,
                    num_values=num_values,
                    compressed_nbytes=nbytes,
                    data_page_offset=data,
                    dictionary_page_offset=dictionary,
                )
                yield self._leaves[leaf], chunk

    def _check_group(self, number: int, group: GroupChunks) -> None:
        if group.num_chunks != len(self._leaves):
            raise ValueError(f"row group {number} has {group.num_chunks} column chunks, expected {len(self._leaves)}")
        if not group.num_rows:
            return
        values = np.asarray(group.num_values)
        if group.num_rows < 0 or (values[self._is_flat] != group.num_rows).any() or (values < group.num_rows).any():
            raise ValueError(f"row group {number} has {group.num_rows:,} rows and a column of another number of values")
        begins, sizes = _extents(group)
        # Sizes first, and each by itself: a sum of two claims may overflow.
        is_outside = (sizes <= 0) | (sizes > self.data_stop) | (begins < _FIRST_BYTE) | (begins > self.data_stop)
        if is_outside.any() or (begins + sizes > self.data_stop).any():
            raise ValueError(f"a column chunk of row group {number} lies outside of the file")

    def _check_overlaps(self) -> None:
        groups = [self.group(number) for number in range(self.num_groups)]
        if extents := [_extents(group) for group in groups if group.num_rows]:
            begins, sizes = (np.concatenate(part) for part in zip(*extents, strict=True))
            order = np.argsort(begins, kind="stable")
            if (begins[order][1:] < (begins + sizes)[order][:-1]).any():
                raise ValueError("two column chunks overlap")


def read_contents(path: str) -> Contents:
    """Read and check the footer of a file.

    Raises:
        CorruptFile: it does not parse, or says what cannot be true.
    """
    footer = read_footer_bytes(path)
    with parsing(path):
        return Contents(footer)


def _leaf_types(metadata: Any) -> Iterator[LeafType]:
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        kind = column.physical_type
        width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
        yield LeafType(name=column.path, width=width, max_repetition=column.max_repetition_level)


def _extents(group: GroupChunks) -> tuple[Integers, Integers]:
    """Return where the chunks of a row group begin, and how long they are."""
    data, dictionary = np.asarray(group.data_page_offset), np.asarray(group.dictionary_page_offset)
    return np.where((dictionary > 0) & (dictionary < data), dictionary, data), np.asarray(group.compressed_nbytes)
