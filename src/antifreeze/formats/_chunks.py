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
a chunk is matched by a regular expression: one for chunks with the fields of the first (0.3 microseconds), else one
for chunks as writers write them (1 microsecond). All others are read field by field (20 microseconds); the result is
the same.

Arrow also needs 12 to 17 times the bytes of a footer in memory, and about 160 times those of a hostile one, whose
chunks are empty. So it is never given a large footer whole: ``GroupIndex`` cuts one with a single row group, or none.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from antifreeze.formats._thrift import (
    FLAT_STRUCT,
    SHORT_BINARY,
    SMALL_FIELD,
    VARINT,
    CompactReader,
    Wire,
    shape_of,
    short_list,
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
# Chunks that are skipped are matched in blocks, which saves a third of the time.
_BLOCK = 64
# Patterns take milliseconds to compile: not for the few chunks of most files.
_MANY = 256
# Columns that no file has; the numbers of as many chunks take about 10 MB.
_MAX_CHUNKS = 100_000


@functools.cache
def _any_chunk() -> re.Pattern[bytes]:
    """Return a pattern for chunks as writers write them."""
    return re.compile(_CHUNK_START + rb"%s{0,16}+\x00%s" % (SMALL_FIELD, FLAT_STRUCT), re.DOTALL)


@functools.lru_cache(maxsize=16)
def _chunk_like(rest: bytes, count: int) -> re.Pattern[bytes]:
    """Return a pattern for chunks that have the same fields as one that was seen."""
    if count == 1:
        return re.compile(_CHUNK_START + rest, re.DOTALL)
    # Without groups, which would be remembered.
    start = _CHUNK_START.replace(_NUMBER, _NUMBER[1:-1])
    return re.compile(b"(?>%s){%d}" % (start + rest, count), re.DOTALL)


# ColumnMetaData, by field number, in the order of ``_CHUNK``'s groups.
_NUMBERS = {4: Wire.I32, 5: Wire.I64, 6: Wire.I64, 7: Wire.I64, 9: Wire.I64, 11: Wire.I64}
_DICTIONARY = 11
# Fewer numbers are decoded faster one by one than with NumPy.
_FEW = 32

RawNumbers = Sequence[bytes | int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupChunks:
    """One row group and its chunks: each sequence has one entry per leaf column, in the order of the schema.

    Numbers are what the file claims, of 64 bits and perhaps negative; nothing here is checked against anything else.
    """

    start: int
    """Where the row group starts in the footer; see ``read_group``."""
    num_rows: int
    total_byte_size: int
    num_chunks: int
    # As stored, and decoded on demand: most are never needed.
    raw_codec: RawNumbers
    raw_num_values: RawNumbers
    raw_uncompressed_nbytes: RawNumbers
    raw_compressed_nbytes: RawNumbers
    raw_data_page_offset: RawNumbers
    raw_dictionary_page_offset: RawNumbers

    @property
    def codec(self) -> array[int]:
        """Number of the compression codec."""
        return decode(self.raw_codec)

    @property
    def num_values(self) -> array[int]:
        """Values, nulls included."""
        return decode(self.raw_num_values)

    @property
    def uncompressed_nbytes(self) -> array[int]:
        """Bytes of all pages and their headers, before compression."""
        return decode(self.raw_uncompressed_nbytes)

    @property
    def compressed_nbytes(self) -> array[int]:
        """Bytes of all pages and their headers, as they are in the file."""
        return decode(self.raw_compressed_nbytes)

    @property
    def data_page_offset(self) -> array[int]:
        """Where the first data page starts in the file."""
        return decode(self.raw_data_page_offset)

    @property
    def dictionary_page_offset(self) -> array[int]:
        """Where the dictionary page starts in the file; -1 if the footer names none."""
        return decode(self.raw_dictionary_page_offset)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupIndex:
    """Where the row groups are in a footer, and what it claims of each: one entry per row group."""

    footer: bytes
    num_rows: int
    """Of the file."""
    group_rows: array[int]
    group_nbytes: array[int]
    group_start: array[int]
    """Where each row group starts in the footer, and then where the last one ends."""
    num_chunks: tuple[int, ...]
    """Numbers of column chunks that row groups have: one number, in a sound file that has row groups."""
    first_groups: tuple[GroupChunks, ...]
    """As many as were asked for."""
    list_start: int
    """Where the list of row groups starts in the footer."""
    schema_key: tuple[bytes, bytes]
    """The same bytes for files of the same schema and metadata, as far as a footer has them before its row groups."""

    def read(self, group: int) -> GroupChunks:
        """Return one row group, read again."""
        return read_group(self.footer, self.group_start[group])

    def file_without_groups(self) -> bytes:
        """Return a Parquet file without rows that has the schema and metadata of this one."""
        return self._file(b"\x0c")

    def file(self) -> bytes:
        """Return the end of the Parquet file, for ``pq.read_metadata``."""
        return b"".join((_MAGIC, self.footer, len(self.footer).to_bytes(4, "little"), _MAGIC))

    def file_with_group(self, group: int) -> bytes:
        """Return the end of a Parquet file, for ``pq.read_metadata``, that has one of the row groups and no other.

        Offsets are those of the whole file: ``pq.ParquetFile(path, metadata=...)`` reads that row group as its first.
        """
        return self._file(b"\x1c" + self.footer[self.group_start[group] : self.group_start[group + 1]])

    def _file(self, groups: bytes) -> bytes:
        footer = self.footer[: self.list_start] + groups + self.footer[self.group_start[-1] :]
        return b"".join((_MAGIC, footer, len(footer).to_bytes(4, "little"), _MAGIC))


class FooterWalk:
    """The row groups of a footer, one after the other.

    ``num_rows`` and ``num_groups`` are what the file claims; ``num_rows`` is None until it was read (writers put it
    before the row groups). Iterate once; each step reads one row group.

    Raises:
        ValueError: the bytes are not those of a footer; from the constructor, or while iterating.
    """

    def __init__(self, footer: bytes) -> None:
        self.num_rows: int | None = None
        self.num_groups = 0
        self._reader = CompactReader(footer)
        self._fields = self._reader.fields()
        self._list_start = self._rows_start = 0
        self._to_groups()

    def __iter__(self) -> Iterator[GroupChunks]:
        for _ in range(self.num_groups):
            yield _read_group(self._reader)
        self._to_end()

    def index(self, max_chunks: int) -> GroupIndex:
        """Walk to the end, and return where the row groups are; instead of iterating.

        Args:
            max_chunks: row groups are read until they have this many chunks; those that follow are only skipped.
        """
        rows, nbytes, starts = array("q"), array("q"), array("q", [self._reader.position])
        counts: set[int] = set()
        first: list[GroupChunks] = []
        seen = 0
        for _ in range(self.num_groups):
            group = _read_group(self._reader, max_chunks=_MAX_CHUNKS if seen < max_chunks else 0)
            # Order: before the next one is read. Row groups without chunks have so few bytes that an entry has more.
            if group.num_chunks == 0 and self.num_groups > 1:
                raise ValueError("a row group has no column chunks")
            if seen < max_chunks and group.num_chunks <= _MAX_CHUNKS:
                first.append(group)
            seen += group.num_chunks
            counts.add(group.num_chunks)
            rows.append(group.num_rows)
            nbytes.append(group.total_byte_size)
            starts.append(self._reader.position)
        self._to_end()
        return GroupIndex(
            footer=self._reader.data,
            num_rows=self.num_rows or 0,
            group_rows=rows,
            group_nbytes=nbytes,
            group_start=starts,
            num_chunks=tuple(sorted(counts)),
            first_groups=tuple(first),
            list_start=self._list_start,
            schema_key=(self._reader.data[: min(self._rows_start, self._list_start)], self._reader.data[starts[-1] :]),
        )

    def _to_groups(self) -> None:
        for number, wire in self._fields:
            if number == 4:
                self._list_start = self._reader.position
                item, self.num_groups = _list_header(self._reader, wire)
                _expect(item, Wire.STRUCT, "row_groups")
                return
            self._other_field(number, wire)
        raise ValueError("the footer has no row_groups")

    def _to_end(self) -> None:
        for number, wire in self._fields:
            self._other_field(number, wire)
        if self.num_rows is None:
            raise ValueError("the footer has no num_rows")

    def _other_field(self, number: int, wire: Wire) -> None:
        if number == 3:
            _expect(wire, Wire.I64, "num_rows")
            self._rows_start = self._reader.position
            self.num_rows = self._reader.read_int()
        else:
            self._reader.skip(wire)


def read_group(footer: bytes, start: int) -> GroupChunks:
    """Return the row group that starts at a byte of the footer, given by ``GroupChunks.start`` of an earlier walk."""
    return _read_group(CompactReader(footer, start))


def _read_group(reader: CompactReader, *, max_chunks: int | None = None) -> GroupChunks:
    """Read a row group, or skip its chunks if there are more than ``max_chunks``."""
    start = reader.position
    numbers: dict[int, int] = {}
    raw: tuple[RawNumbers, ...] | None = None
    count = 0
    for number, wire in reader.fields():
        if number == 1:
            item, count = _list_header(reader, wire)
            _expect(item, Wire.STRUCT, "columns")
            is_skipped = max_chunks is not None and count > max_chunks
            raw = _skip_chunks(reader, count) if is_skipped else _read_chunks(reader, count)
        elif number in (2, 3):
            _expect(wire, Wire.I64, "num_rows or total_byte_size")
            numbers[number] = reader.read_int()
        else:
            reader.skip(wire)
    if raw is None or len(numbers) != 2:
        raise ValueError(f"the row group at byte {start} has no columns, num_rows or total_byte_size")
    return GroupChunks(
        start=start,
        num_rows=numbers[3],
        total_byte_size=numbers[2],
        num_chunks=count,
        raw_codec=raw[0],
        raw_num_values=raw[1],
        raw_uncompressed_nbytes=raw[2],
        raw_compressed_nbytes=raw[3],
        raw_data_page_offset=raw[4],
        raw_dictionary_page_offset=raw[5],
    )


def _read_chunks(reader: CompactReader, count: int) -> tuple[RawNumbers, ...]:
    rows: list[tuple[bytes | int, ...]] = []
    likely = _likely_chunk(reader, count, 1)
    data, position = reader.data, reader.position
    for _ in range(count):
        found = likely.match(data, position) if likely is not None else None
        found = found or (_any_chunk().match(data, position) if _is_worth_it(count) else None)
        if found is not None:
            position = found.end()
            rows.append(found.groups(_NOT_SET))
        else:
            reader.position = position
            rows.append(_read_chunk(reader))
            position = reader.position
    reader.position = position
    return tuple(zip(*rows, strict=True)) if rows else ((),) * len(_NUMBERS)


def _skip_chunks(reader: CompactReader, count: int) -> tuple[RawNumbers, ...]:
    """Move behind chunks that are as sound as those that are read."""
    likely = _likely_chunk(reader, count, _BLOCK)
    while count:
        found = likely.match(reader.data, reader.position) if likely is not None and count >= _BLOCK else None
        if found is not None:
            reader.position = found.end()
        else:
            # Order: as many as the block has, before another block is tried. Else one odd chunk costs 64 attempts.
            _read_chunks(reader, min(count, _BLOCK))
        count -= min(count, _BLOCK)
    return ((),) * len(_NUMBERS)


class _Seen:
    """How many chunks this process has read."""

    num_chunks = 0


def _is_worth_it(count: int) -> bool:
    """True once enough chunks were read for compiling a pattern to pay off."""
    _Seen.num_chunks += 1
    return count >= _MANY or _Seen.num_chunks > _MANY


def _likely_chunk(reader: CompactReader, count: int, block: int) -> re.Pattern[bytes] | None:
    """Return a pattern for chunks like the next one, if there are many."""
    first = _any_chunk().match(reader.data, reader.position) if count >= _MANY else None
    if first is None:
        return None
    try:
        rest, end = shape_of(reader.data, max(first.end(5), first.end(6)))
        more, _ = shape_of(reader.data, end)
    except (ValueError, IndexError):
        return None
    return _chunk_like(rest + more, block)


def _read_chunk(reader: CompactReader) -> tuple[int, ...]:
    """Read a chunk that does not have the usual form."""
    start = reader.position
    found: dict[int, int] = {_DICTIONARY: -1}
    for number, wire in reader.fields():
        if number != 3:
            reader.skip(wire)
            continue
        _expect(wire, Wire.STRUCT, "meta_data")
        for inner, inner_wire in reader.fields():
            if inner not in _NUMBERS or (inner == _DICTIONARY and inner_wire is not _NUMBERS[inner]):
                # Arrow, too, reads an optional field of another type as if it were not there.
                reader.skip(inner_wire)
            else:
                _expect(inner_wire, _NUMBERS[inner], f"field {inner} of a column chunk")
                found[inner] = reader.read_int()
    if len(found) != len(_NUMBERS):
        raise ValueError(f"the column chunk at byte {start} lacks its size, offset or number of values")
    return tuple(found[number] for number in _NUMBERS)


def _list_header(reader: CompactReader, wire: Wire) -> tuple[Wire, int]:
    _expect(wire, Wire.LIST, "a list")
    return reader.read_list_header()


def _expect(wire: Wire, expected: Wire, what: str) -> None:
    if wire is not expected:
        raise ValueError(f"{what} has the type {wire.name}, expected {expected.name}")


def _signed(data: bytes) -> int:
    """Return a number of at most 8 bytes."""
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
    # Zigzag: the sign is the lowest bit.
    return (number >> 1) ^ -(number & 1)


def decode(raw: RawNumbers) -> array[int]:
    """Return the numbers of one field, of any number of row groups."""
    if len(raw) < _FEW or any(isinstance(number, int) for number in raw):
        return array("q", [n if isinstance(n, int) else _signed(n) for n in raw])
    words = np.frombuffer(b"".join([number.ljust(8, b"\0") for number in raw]), "<u8")  # type: ignore[union-attr]
    # Close the gaps between 7 bits and 7 bits, then between 14 and 14, then between 28 and 28.
    words = (words & 0x007F007F007F007F) | (words & 0x7F007F007F007F00) >> 1
    words = (words & 0x00003FFF00003FFF) | (words & 0x3FFF00003FFF0000) >> 2
    words = (words & 0x000000000FFFFFFF) | (words & 0x0FFFFFFF00000000) >> 4
    signed = (words >> 1).astype("<i8") ^ -(words & 1).astype("<i8")
    return array("q", signed.tobytes())
