"""Parses the row groups and column chunks of a footer, in one linear walk over its bytes.

    FileMetaData ─ 3 num_rows
                 └ 4 row_groups ─ 1 columns ─ 3 meta_data ─ 4 codec, 5 num_values, 6 and 7 sizes, 9 and 11 offsets
                                ├ 2 total_byte_size
                                └ 3 num_rows

Tried: ``metadata.row_group(i).column(j)``. Arrow (26.0) checks a chunk's statistics when it is asked for, and the C++
exception that a damaged one raises is not caught: it ends the interpreter, for about one damaged footer in 500.
``ParquetFile`` and ``row_group(i)`` raise properly.

Tried: a search for the bytes around each column's name. It took time quadratic in the number of columns (44 s for
10,000 columns and 10 row groups) and, as one call into C, could not be interrupted.

Arrow parses a chunk in half a microsecond, in which Python executes about ten instructions. So where there are many,
a chunk is matched by a regular expression for chunks as writers write them (1 microsecond). All others are read field
by field (20 microseconds); the result is the same.

Tried: a second expression, for chunks with exactly the fields of the first (0.3 microseconds). It cost a hundred lines,
and the footer of a file with 50,000 chunks was read in 32 milliseconds instead of 69; other files did not gain.

Arrow also needs 12 to 17 times the bytes of a footer in memory, and about 160 times those of a hostile one, whose
chunks are empty. So it is never given a large footer whole: ``FooterIndex`` cuts one with a single row group, or none.
"""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from antifreeze.formats._thrift import (
    FLAT_STRUCT,
    SHORT_BINARY,
    SMALL_FIELD,
    VARINT,
    CompactReader,
    Wire,
    short_list,
    signed,
)

_MAGIC = b"PAR1"

# At most 8 bytes, so that a number fits into a machine word; longer ones are read field by field.
_NUMBER = rb"([\x80-\xff]{0,7}+[\x00-\x7f])"
# file_offset, then the struct of meta_data: type, encodings, path, codec, num_values, both sizes, data_page_offset, and
# perhaps dictionary_page_offset. What follows differs from writer to writer; where there is no such offset it must be
# the end of the struct or a later field, so that an offset at an unusual position is never missed.
_CHUNK_START = rb"\x26%s\x1c\x15%s\x19%s\x19%s" % (
    VARINT,
    VARINT,
    short_list(Wire.I32, VARINT, 8),
    short_list(Wire.BINARY, SHORT_BINARY, 5),
) + rb"\x15%s\x16%s\x16%s\x16%s\x26%s(?:\x26%s|(?=[\x00\x30-\xff]))" % ((_NUMBER,) * 6)
_NOT_SET = b"\x01"  # -1, in zigzag
# Patterns take milliseconds to compile: not for the few chunks of most files.
_MANY = 256
# Columns that no file has; the numbers of as many chunks take about 10 MB.
_MAX_CHUNKS = 100_000


@functools.cache
def _any_chunk() -> re.Pattern[bytes]:
    """Return a pattern for chunks as writers write them."""
    return re.compile(_CHUNK_START + rb"%s{0,16}+\x00%s" % (SMALL_FIELD, FLAT_STRUCT), re.DOTALL)


class ChunkField(IntEnum):
    """Numbers of a column chunk, by their field in ColumnMetaData; in the order of the groups of the pattern."""

    CODEC = 4
    """Number of the compression codec."""
    NUM_VALUES = 5
    """Values, nulls included."""
    UNCOMPRESSED_NBYTES = 6
    """Bytes of all pages and their headers, before compression."""
    COMPRESSED_NBYTES = 7
    """Bytes of all pages and their headers, as they are in the file."""
    DATA_PAGE_OFFSET = 9
    """Where the first data page starts in the file."""
    DICTIONARY_PAGE_OFFSET = 11
    """Where the dictionary page starts in the file; -1 if the footer names none."""


_FIELDS = tuple(ChunkField)
_WIRES: dict[int, Wire] = {**dict.fromkeys(ChunkField, Wire.I64), ChunkField.CODEC: Wire.I32}
# Fewer numbers are decoded faster one by one than with NumPy.
_FEW = 32

RawNumbers = Sequence[bytes | int]


class GroupChunks(NamedTuple):
    """One row group and its chunks: each sequence has one entry per leaf column, in the order of the schema.

    Numbers are what the file claims, of 64 bits and perhaps negative; nothing here is checked against anything else.
    """

    num_rows: int
    total_byte_size: int
    num_chunks: int
    raw: dict[ChunkField, RawNumbers]
    """As stored, and decoded on demand: most are never needed."""

    def numbers(self, field: ChunkField) -> array[int]:
        """Return one number of each chunk."""
        return decode(self.raw[field])


class FooterIndex:
    """Where the row groups are in a footer, and what it claims of each.

    Args:
        footer: its bytes.
        max_chunks: row groups are kept until they have this many chunks; those that follow are only skipped.

    Raises:
        ValueError: the bytes are not those of a footer.
    """

    def __init__(self, footer: bytes, max_chunks: int) -> None:
        self._footer = footer
        self.group_rows, self.group_nbytes = array("q"), array("q")
        """One entry per row group."""
        self.group_start = array("q")
        """Where each row group starts in the footer, and then where the last one ends."""
        self.num_chunks: set[int] = set()
        """Numbers of column chunks that row groups have: one number, in a sound file that has row groups."""
        self.first_groups: list[GroupChunks] = []
        """As many as were asked for."""
        reader = CompactReader(footer)
        rows_start = self._list_start = 0
        num_rows: int | None = None
        for number, wire in reader.fields():
            if number == 3:
                _expect(wire, Wire.I64, "num_rows")
                rows_start = reader.position
                num_rows = reader.read_int()
            elif number == 4:
                self._list_start = reader.position
                self._read_groups(reader, wire, max_chunks)
            else:
                reader.skip(wire)
        if not self.group_start or num_rows is None:
            raise ValueError("the footer has no row_groups or no num_rows")
        self.num_rows = num_rows
        """Of the file."""
        head = footer[: min(rows_start, self._list_start)]
        digest = hashlib.blake2b(len(head).to_bytes(8, "little") + head, digest_size=32)
        digest.update(footer[self.group_start[-1] :])
        self.schema_key = digest.digest()
        """The same for files of the same schema and metadata, as far as a footer has them before its groups."""

    def _read_groups(self, reader: CompactReader, wire: Wire, max_chunks: int) -> None:
        num_groups = _list_of_structs(reader, wire, "row_groups")
        self.group_start.append(reader.position)
        seen = 0
        for _ in range(num_groups):
            group = _read_group(reader, max_chunks=_MAX_CHUNKS if seen < max_chunks else 0)
            # Order: before the next one is read. Row groups without chunks have so few bytes that an entry has more.
            if group.num_chunks == 0 and num_groups > 1:
                raise ValueError("a row group has no column chunks")
            if seen < max_chunks and group.num_chunks <= _MAX_CHUNKS:
                self.first_groups.append(group)
            seen += group.num_chunks
            self.num_chunks.add(group.num_chunks)
            self.group_rows.append(group.num_rows)
            self.group_nbytes.append(group.total_byte_size)
            self.group_start.append(reader.position)

    def read(self, group: int) -> GroupChunks:
        """Return one row group, read again."""
        return _read_group(CompactReader(self._footer, self.group_start[group]))

    def file(self) -> bytes:
        """Return the end of the Parquet file, for ``pq.read_metadata``."""
        return _file(self._footer)

    def file_with(self, group: int | None) -> bytes:
        """Return the end of a Parquet file with the schema and metadata of this one, and one of its row groups or none.

        Offsets are those of the whole file: ``pq.ParquetFile(path, metadata=...)`` reads that row group as its first.
        """
        groups = b"\x0c"  # an empty list of structs
        if group is not None:
            groups = b"\x1c" + self._footer[self.group_start[group] : self.group_start[group + 1]]
        return _file(self._footer[: self._list_start] + groups + self._footer[self.group_start[-1] :])


def _file(footer: bytes) -> bytes:
    return b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC))


def _read_group(reader: CompactReader, *, max_chunks: int | None = None) -> GroupChunks:
    """Read a row group, or skip its chunks if there are more than ``max_chunks``."""
    start = reader.position
    numbers: dict[int, int] = {}
    raw: dict[ChunkField, RawNumbers] | None = None
    count = 0
    for number, wire in reader.fields():
        if number == 1:
            count = _list_of_structs(reader, wire, "columns")
            raw = _read_chunks(reader, count, are_kept=max_chunks is None or count <= max_chunks)
        elif number in (2, 3):
            _expect(wire, Wire.I64, "num_rows or total_byte_size")
            numbers[number] = reader.read_int()
        else:
            reader.skip(wire)
    if raw is None or len(numbers) != 2:
        raise ValueError(f"the row group at byte {start} has no columns, num_rows or total_byte_size")
    return GroupChunks(numbers[3], numbers[2], count, raw)


def _read_chunks(reader: CompactReader, count: int, *, are_kept: bool) -> dict[ChunkField, RawNumbers]:
    rows: list[tuple[bytes | int, ...]] = []
    _Seen.num_chunks += count
    match = _any_chunk().match if _Seen.num_chunks > _MANY else None
    data, position = reader.data, reader.position
    for _ in range(count):
        found = match(data, position) if match is not None else None
        if found is None:
            reader.position = position
            row: tuple[bytes | int, ...] = _read_chunk(reader)
            position = reader.position
        else:
            position = found.end()
            row = found.groups(_NOT_SET)
        if are_kept:
            rows.append(row)
    reader.position = position
    return dict(zip(_FIELDS, zip(*rows, strict=True) if rows else [()] * len(_FIELDS), strict=True))


class _Seen:
    """How many chunks this process has read."""

    num_chunks = 0


def _read_chunk(reader: CompactReader) -> tuple[int, ...]:
    """Read a chunk that does not have the usual form."""
    start = reader.position
    found: dict[int, int] = {ChunkField.DICTIONARY_PAGE_OFFSET: -1}
    for number, wire in reader.fields():
        if number != 3:
            reader.skip(wire)
            continue
        _expect(wire, Wire.STRUCT, "meta_data")
        for inner, inner_wire in reader.fields():
            expected = _WIRES.get(inner)
            if expected is None or (inner == ChunkField.DICTIONARY_PAGE_OFFSET and inner_wire is not expected):
                # Arrow, too, reads an optional field of another type as if it were not there.
                reader.skip(inner_wire)
            else:
                _expect(inner_wire, expected, f"field {inner} of a column chunk")
                found[inner] = reader.read_int()
    if len(found) != len(_FIELDS):
        raise ValueError(f"the column chunk at byte {start} lacks its size, offset or number of values")
    return tuple(found[field] for field in _FIELDS)


def _list_of_structs(reader: CompactReader, wire: Wire, what: str) -> int:
    """Return the number of structs in a list, the first of which is next."""
    _expect(wire, Wire.LIST, what)
    item, count = reader.read_list_header()
    _expect(item, Wire.STRUCT, what)
    return count


def _expect(wire: Wire, expected: Wire, what: str) -> None:
    if wire is not expected:
        raise ValueError(f"{what} has the type {wire.name}, expected {expected.name}")


def decode(raw: RawNumbers) -> array[int]:
    """Return the numbers of one field, of any number of row groups."""
    if len(raw) < _FEW or any(isinstance(number, int) for number in raw):
        return array("q", [n if isinstance(n, int) else signed(n) for n in raw])
    words = np.frombuffer(b"".join([number.ljust(8, b"\0") for number in raw]), "<u8")  # type: ignore[union-attr]
    # Close the gaps between 7 bits and 7 bits, then between 14 and 14, then between 28 and 28.
    words = (words & 0x007F007F007F007F) | (words & 0x7F007F007F007F00) >> 1
    words = (words & 0x00003FFF00003FFF) | (words & 0x3FFF00003FFF0000) >> 2
    words = (words & 0x000000000FFFFFFF) | (words & 0x0FFFFFFF00000000) >> 4
    numbers = (words >> 1).astype("<i8") ^ -(words & 1).astype("<i8")
    return array("q", numbers.tobytes())
