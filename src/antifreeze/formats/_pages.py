"""The pages of a column chunk, from their headers: what decoding them will take, before anything is believed.

A page header claims how many bytes a page has, before and after decompression, and how many values. Arrow allocates
what it says: 1.4 kB of file can ask for 2 GB. So all headers of a chunk are read first, each with one small read (about
20 microseconds), and compared with what is left of the chunk and with what may be allocated.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import pyarrow as pa

from antifreeze.formats._thrift import FLAT_STRUCT, VARINT, CompactReader, signed

Read = Callable[[int, int], bytes]
"""(offset, size) -> bytes of the file; fewer at its end."""

_HEADER_NBYTES = (256, 1 << 14, 1 << 20, 16 << 20)
"""How much is read for a header: most are short, but statistics can hold large values. Arrow reads no longer ones."""
_OLD_WRITERS_NBYTES = 100
"""Some old writers do not count the header of the dictionary page; Arrow tolerates this many bytes, too."""


class PageType(IntEnum):
    """Kinds of pages."""

    DATA = 0
    INDEX = 1
    DICTIONARY = 2
    DATA_V2 = 3


class Encoding(IntEnum):
    """Encodings that need to be distinguished here."""

    PLAIN_DICTIONARY = 2
    DELTA_BYTE_ARRAY = 7
    RLE_DICTIONARY = 8


CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""Codecs that can be undone here, by their number in the format. 0 is none."""
UNCOMPRESSED = 0
_LENGTH = struct.Struct("<I")
_PACKED_VALUES = 512
"""Packed levels are examined in blocks of this size; row starts inside a block are not located exactly."""


class Page(NamedTuple):
    """The header of one page."""

    kind: PageType
    offset: int
    """Where its bytes begin in the file, after the header."""
    compressed_nbytes: int
    uncompressed_nbytes: int
    num_values: int
    encoding: int
    levels_nbytes: tuple[int, int] = (0, 0)
    """Version 2: bytes of repetition and definition levels, which come first and are not compressed."""
    is_compressed: bool = True

    @property
    def is_dictionary_encoded(self) -> bool:
        """Whether values are numbers of dictionary entries."""
        return self.encoding in (Encoding.PLAIN_DICTIONARY, Encoding.RLE_DICTIONARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafType:
    """The properties of one leaf column in a schema."""

    name: str
    width: int | None
    """Bytes of a value; None for byte strings."""
    max_repetition: int
    """0 unless the leaf lies in a list."""


class Chunk(NamedTuple):
    """One column chunk, as a footer describes it."""

    codec: int
    num_values: int
    compressed_nbytes: int
    data_page_offset: int
    dictionary_page_offset: int

    @property
    def start(self) -> int:
        """Where the first page begins."""
        if 0 < self.dictionary_page_offset < self.data_page_offset:
            return self.dictionary_page_offset
        return self.data_page_offset

    @property
    def stop(self) -> int:
        """Where the chunk ends."""
        return self.start + self.compressed_nbytes


def walk_pages(read: Read, chunk: Chunk, data_stop: int) -> tuple[Page | None, list[Page]]:
    """Return the dictionary page and the data pages of a chunk of a file whose footer begins at ``data_stop``.

    Raises:
        ValueError: a header does not parse, or claims what the chunk does not have.
    """
    dictionary: Page | None = None
    pages: list[Page] = []
    position, left = chunk.start, chunk.num_values
    stop = min(chunk.stop + _OLD_WRITERS_NBYTES, data_stop)
    while left > 0:
        if position >= chunk.stop:
            raise ValueError(f"its pages end {left:,} values before the {chunk.num_values:,} that its footer promises")
        page = _read_page(read, position, stop)
        _check_page(page, chunk, stop)
        position = page.offset + page.compressed_nbytes
        if page.kind is PageType.DICTIONARY:
            if dictionary is not None or pages:
                raise ValueError("it has a dictionary page that is not its first page")
            dictionary = page
        elif page.kind is not PageType.INDEX:
            if page.is_dictionary_encoded and dictionary is None:
                raise ValueError("a page refers to a dictionary, and there is none")
            pages.append(page)
            left -= page.num_values
    if left < 0:
        raise ValueError(f"its pages have {-left:,} values more than the {chunk.num_values:,} that its footer promises")
    return dictionary, pages


def _check_page(page: Page, chunk: Chunk, stop: int) -> None:
    if page.offset + page.compressed_nbytes > stop:
        raise ValueError(
            f"a page claims {page.compressed_nbytes:,} bytes where {max(0, stop - page.offset):,} are left of the chunk"
        )
    is_plain = chunk.codec == UNCOMPRESSED or not page.is_compressed
    if is_plain and page.compressed_nbytes != page.uncompressed_nbytes:
        raise ValueError("an uncompressed page claims two different sizes")
    if sum(page.levels_nbytes) > min(page.compressed_nbytes, page.uncompressed_nbytes):
        raise ValueError("a page claims more bytes of levels than it has")


def _read_page(read: Read, position: int, stop: int) -> Page:
    """Read the header at a position."""
    for size in _HEADER_NBYTES:
        data = read(position, min(size, stop - position))
        if (found := _DATA_HEADER.match(data) or _DICTIONARY_HEADER.match(data)) is not None:
            kind, uncompressed, compressed, num_values, encoding = map(signed, found.groups())
            if uncompressed | compressed | num_values | encoding < 0:  # one of them is: the sign is a bit, too
                raise ValueError("a page header claims a negative number")
            return Page(_TYPES[kind], position + found.end(), compressed, uncompressed, num_values, encoding)
        reader = CompactReader(data)
        try:
            fields = reader.read_struct()
        except ValueError:
            if len(data) < size or size == _HEADER_NBYTES[-1]:
                raise
            continue  # perhaps there is more of it
        return _page(fields, position + reader.position)
    raise AssertionError("unreachable")


# The two headers that writers use most, in the form that they use, and nothing else: ten times as fast as by fields.
# At most four bytes for a number, so that it is below 2**27.
_NUMBER = rb"([\x80-\xff]{0,3}+[\x00-\x7f])"
_START = rb"\x15(%s)\x15" + _NUMBER + rb"\x15" + _NUMBER
_DATA_HEADER = re.compile(
    _START % rb"\x00"
    + rb"(?:\x15%s\x1c|\x2c)\x15" % VARINT
    + _NUMBER
    + rb"\x15"
    + _NUMBER
    + rb"\x15%s\x15%s(?:\x1c%s)?+\x00\x00" % (VARINT, VARINT, FLAT_STRUCT),
    re.DOTALL,
)
_DICTIONARY_HEADER = re.compile(
    _START % rb"\x04" + rb"(?:\x15%s\x3c|\x4c)\x15" % VARINT + _NUMBER + rb"\x15" + _NUMBER + rb"[\x11\x12]?+\x00\x00",
    re.DOTALL,
)
_TYPES = dict(enumerate(PageType))


_INNER = {PageType.DATA: 5, PageType.DICTIONARY: 7, PageType.DATA_V2: 8}


def _page(fields: dict[int, Any], offset: int) -> Page:
    kind = PageType(_number(fields, 1))
    compressed, uncompressed = _number(fields, 3), _number(fields, 2)
    if kind is PageType.INDEX:
        return Page(kind, offset, compressed, uncompressed, 0, 0)
    inner = fields.get(_INNER[kind])
    if not isinstance(inner, dict):
        raise ValueError(f"a page of type {kind.name} has no header of its type")  # noqa: TRY004 - one kind of error
    num_values = _number(inner, 1)
    if kind is not PageType.DATA_V2:
        return Page(kind, offset, compressed, uncompressed, num_values, _number(inner, 2))
    levels = _number(inner, 6), _number(inner, 5)
    is_compressed = inner.get(7, True) is True
    return Page(kind, offset, compressed, uncompressed, num_values, _number(inner, 4), levels, is_compressed)


def _number(fields: dict[int, Any], field: int) -> int:
    number = fields.get(field)
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError(f"a page header claims {number!r} where a number from 0 to 2**31 - 1 is expected")
    return number


def page_body(read: Read, page: Page, codec: int) -> memoryview:
    """Return the bytes of a page, decompressed. The caller has checked what it claims.

    Raises:
        ValueError: the page does not decompress, or by a codec that is not known here.
    """
    data = read(page.offset, page.compressed_nbytes)
    if len(data) < page.compressed_nbytes:
        raise ValueError("the file ends in the middle of a page")
    if codec == UNCOMPRESSED or not page.is_compressed:
        return memoryview(data)
    if codec not in CODECS:
        raise ValueError(f"codec {codec} is not known")
    levels = sum(page.levels_nbytes)
    try:
        values = pa.Codec(CODECS[codec]).decompress(data[levels:], page.uncompressed_nbytes - levels)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"a page does not decompress: {error}") from error
    return memoryview(data[:levels] + values.to_pybytes()) if levels else memoryview(values)


def longest_entry(body: memoryview, num_entries: int) -> int:
    """Return the length of the longest entry of a dictionary of byte strings.

    Raises:
        ValueError: the entries do not fit in the page.
    """
    position = longest = 0
    unpack = _LENGTH.unpack_from
    try:
        for _ in range(num_entries):
            (length,) = unpack(body, position)
            position += 4 + length
            if length > longest:
                longest = length
    except struct.error:
        raise ValueError("its dictionary ends before its last entry") from None
    if position > len(body):
        raise ValueError("an entry of its dictionary is longer than its page")
    return longest


@dataclass(slots=True)
class LongestRow:
    """How many values the longest row of a nested column has; pages are added in order, for a row may span several.

    A list of 200 million equal numbers takes some bytes in a file and more than a gigabyte in memory, and nothing but
    the repetition levels says that it is one row. Levels are runs: a header, then either one value that is repeated, or
    values of some bits each. A level of 0 begins a row.

    The loop is plain Python, about a microsecond for each run; runs that repeat, as those of lists of one length do,
    are passed over at once. It is used only where the values of a column chunk do not fit in a piece, which with the
    default ``memory_limit`` are hundreds of megabytes.
    """

    num_values: int = 0
    """Values of the longest row. A little more, if it lies within one run of packed values with shorter ones."""
    row: int = 0
    """Its number in the row group."""
    _current: int = 0
    """Values of the row that the last page ended with."""
    _rows: int = 0
    """Rows that have begun."""
    _pair_rows: int = 0
    """Rows that have begun in the last two runs."""

    def add(self, levels: memoryview, bit_width: int, num_values: int) -> None:
        """Add the repetition levels of a page.

        Raises:
            ValueError: the levels end before ``num_values`` of them.
        """
        data, left = bytes(levels), num_values
        reader = CompactReader(data)
        pair, pair_start, pair_values = b"", 0, 0  # two runs: in a column of lists of one length, a row each
        while left > 0:
            is_second = pair_start < reader.position
            count = self._add_run(reader, bit_width, left)
            left -= count
            pair_values += count
            if is_second:
                last, pair = pair, data[pair_start : reader.position]
                if pair == last:
                    repeats = min(_repeats(data, reader.position, pair), left // pair_values)
                    reader.position += repeats * len(pair)
                    left -= repeats * pair_values
                    self._rows += repeats * self._pair_rows
                    if not self._pair_rows:
                        self._current += repeats * pair_values
                pair_start, pair_values, self._pair_rows = reader.position, 0, 0
        self._note(self._current)

    def _add_run(self, reader: CompactReader, bit_width: int, left: int) -> int:
        """Add the next run, and return how many levels it has."""
        header = reader.read_varint()
        is_packed, count = header & 1, header >> 1
        size = count * bit_width if is_packed else (bit_width + 7) // 8
        run = reader.data[reader.position : reader.position + size]
        if not count or len(run) < size:
            raise ValueError("its repetition levels end too early")
        reader.position += size
        if is_packed:
            count = min(count * 8, left)
            for begin in range(0, count, _PACKED_VALUES):
                part = run[begin * bit_width // 8 : (begin + _PACKED_VALUES) * bit_width // 8]
                self._add_packed(int.from_bytes(part, "little"), bit_width, min(_PACKED_VALUES, count - begin))
        elif any(run):
            count = min(count, left)
            self._current += count
        else:  # rows of one value each; the last of them may become longer
            count = min(count, left)
            self._note(self._current)
            self._begin_rows(count)
            self._current = 1
        return count

    def _add_packed(self, run: int, bit_width: int, count: int) -> None:
        lowest_bits = ((1 << bit_width * count) - 1) // ((1 << bit_width) - 1)
        is_set = run
        for shift in range(1, bit_width):
            is_set |= run >> shift
        if not (begins := ~is_set & lowest_bits):  # one bit for each level of 0
            self._current += count
            return
        first, last = ((begins & -begins).bit_length() - 1) // bit_width, (begins.bit_length() - 1) // bit_width
        self._note(self._current + first)
        self._begin_rows(begins.bit_count())
        self._note(last - first)
        self._current = count - last

    def _begin_rows(self, count: int) -> None:
        self._rows += count
        self._pair_rows += count

    def _note(self, num_values: int) -> None:
        if num_values > self.num_values:
            self.num_values, self.row = num_values, max(0, self._rows - 1)


def _repeats(data: bytes, position: int, unit: bytes) -> int:
    """Return how often a unit is repeated from a position on, or somewhat less."""
    count, step = 0, 1
    while step:
        size = step * len(unit)
        if data[position : position + size] == unit * step:
            position += size
            count += step
            step *= 2
        else:
            step //= 2
    return count
