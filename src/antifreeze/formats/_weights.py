"""How many rows of a fragment can be decoded at a time, whatever they hold.

What rows take is not known before they are decoded: a dictionary holds a text of 8 MB once, and every row may name it.
So an upper bound is computed from the headers of the pages, and pieces are made small enough for it. Three steps, each
taken only if the one before would make pieces very small, so that ordinary data costs a few additions:

1. the values of each page, times what a value can take at most: a fixed width, or the whole dictionary;
2. the longest entry of the dictionary, instead of its size;
3. the longest row of a nested column, from its repetition levels (``LongestRow``), instead of all values of the chunk.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from antifreeze.core import ReadLimits
from antifreeze.formats._pages import (
    CODECS,
    UNCOMPRESSED,
    Chunk,
    Encoding,
    LongestRow,
    Page,
    PageType,
    Read,
    longest_entry,
    page_body,
    walk_pages,
)

_OBJECT_NBYTES = 64
"""What a text or byte string takes beside its characters, as a Python object."""
_LEVELS_NBYTES = 5
"""What Arrow keeps for each value of a nested column: two levels, and whether it is null."""
_POINTER_NBYTES = 16
"""What Arrow keeps for each entry of a dictionary of byte strings."""
_BUFFER_NBYTES = 256 << 10
_SMALLER_PIECES = 2
_HUGE = 1 << 62


class TooHeavy(Exception):
    """Something does not fit; for the caller, who knows the file."""

    def __init__(self, what: str, nbytes: int, row: int | None = None) -> None:
        super().__init__(what, nbytes, row)
        self.what, self.nbytes, self.row = what, nbytes, row


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafType:
    """The properties of one leaf column in a schema."""

    name: str
    width: int | None
    """Bytes of a value; None for byte strings."""
    max_repetition: int
    """0 unless the leaf lies in a list."""


class LeafPages:
    """One leaf column of a fragment."""

    def __init__(self, leaf: LeafType, chunk: Chunk, data_stop: int, read: Read) -> None:
        self.leaf = leaf
        self._codec, self._read = chunk.codec, read
        self._dictionary, self.pages = dictionary, pages = walk_pages(read, chunk, data_stop)
        self._entry_nbytes = leaf.width or (dictionary.uncompressed_nbytes if dictionary else 0)
        if dictionary is not None and dictionary.num_values * (leaf.width or 4) > dictionary.uncompressed_nbytes + 8:
            claims = f"{dictionary.num_values:,} entries in {dictionary.uncompressed_nbytes:,} bytes"
            raise ValueError(f"its dictionary claims {claims}")
        self._beside_nbytes = (leaf.width is None) * _OBJECT_NBYTES + (leaf.max_repetition > 0) * _LEVELS_NBYTES
        self.row_values = 1 if not leaf.max_repetition else max(1, sum(page.num_values for page in pages))
        """Values of the longest row, at most."""
        self.longest_row: int | None = None
        """Its number, if it was looked for."""

    @property
    def open_nbytes(self) -> int:
        """What is held while the chunk is read: a page before and after decompression, and the dictionary."""
        pages, is_compressed = self.pages, self._codec != UNCOMPRESSED
        held = min(_BUFFER_NBYTES, sum(page.compressed_nbytes for page in pages))
        if (dictionary := self._dictionary) is not None:
            held += 2 * dictionary.uncompressed_nbytes + dictionary.num_values * _POINTER_NBYTES
        sizes = (page.uncompressed_nbytes + is_compressed * page.compressed_nbytes for page in pages)
        return held + max(sizes, default=0)

    def _page_nbytes(self, page: Page) -> int:
        """Return what the values of a page take at most, once decoded."""
        if self.leaf.width is not None:
            return page.num_values * self.leaf.width
        if page.is_dictionary_encoded:
            return page.num_values * self._entry_nbytes
        if page.encoding == Encoding.DELTA_BYTE_ARRAY:  # a value may repeat all of the one before it
            return page.num_values * page.uncompressed_nbytes
        return page.uncompressed_nbytes

    @property
    def total_nbytes(self) -> int:
        """What all values take at most."""
        return sum(self._page_nbytes(page) + page.num_values * self._beside_nbytes for page in self.pages)

    def nbytes(self, num_rows: int) -> int:
        """Return the maximum size of this many consecutive rows, wherever they are."""
        if self.leaf.width is not None and self.row_values == 1:
            return num_rows * self.leaf.width
        pages = self.pages
        counts = np.array([page.num_values for page in pages], np.int64)
        if not (total := int(counts.sum())):
            return 0
        count = min(num_rows * self.row_values, total)
        sizes = np.array([min(self._page_nbytes(page), _HUGE) for page in pages], float)
        # If each value has the same maximum size, the product; otherwise the pages in which they can be.
        is_even = np.array([self.leaf.width is not None or page.is_dictionary_encoded for page in pages])
        even = min(float(sizes[is_even].sum()), float((sizes / np.maximum(counts, 1))[is_even].max(initial=0)) * count)
        # Values that begin at the end of a page lie in it and in those that follow.
        ends, sums = np.cumsum(counts), np.concatenate([[0.0], np.cumsum(np.where(is_even, 0, sizes))])
        last = np.minimum(np.searchsorted(ends, ends + count - 2, side="right"), len(pages) - 1)
        return int(even + (sums[last + 1] - sums[:-1]).max()) + count * self._beside_nbytes

    def limit(self, limits: ReadLimits) -> int:
        """Return what it may take of a piece: less if its rows can really be as large as they seem."""
        is_known = self.leaf.width is None or self.longest_row is not None
        return limits.heavy_nbytes if is_known else limits.piece_nbytes

    def look_into_dictionary(self) -> None:
        """Replace the size of the dictionary by that of its longest entry."""
        dictionary = self._dictionary
        if dictionary is None or self.leaf.width is not None or self._codec not in (UNCOMPRESSED, *CODECS):
            return
        body = page_body(self._read, dictionary, self._codec)
        self._entry_nbytes = longest_entry(body, dictionary.num_values)

    def look_at_levels(self) -> None:
        """Replace the number of all values by that of the longest row."""
        if not self.leaf.max_repetition or self._codec not in (UNCOMPRESSED, *CODECS):
            return
        longest, bit_width = LongestRow(), self.leaf.max_repetition.bit_length()
        for page in self.pages:
            if page.kind is PageType.DATA_V2:
                levels = memoryview(self._read(page.offset, page.levels_nbytes[0]))
            else:
                body = page_body(self._read, page, self._codec)
                levels = body[4 : 4 + int.from_bytes(body[:4], "little")]
            longest.add(levels, bit_width, page.num_values)
        self.row_values, self.longest_row = max(1, longest.num_values), longest.row


def open_nbytes(leaves: Sequence[LeafPages], limits: ReadLimits) -> int:
    """Return what the fragment holds while it is read.

    Raises:
        TooHeavy: it is more than the limits allow.
    """
    total = sum(leaf.open_nbytes for leaf in leaves)
    if total > limits.open_nbytes:
        heaviest = max(leaves, key=lambda leaf: leaf.open_nbytes)
        raise TooHeavy(f'the pages of column "{heaviest.leaf.name}"', total)
    return total


def rows_at_a_time(leaves: Sequence[LeafPages], piece_rows: int, limits: ReadLimits) -> int:
    """Return how many rows may be decoded at a time, at most ``piece_rows``.

    Raises:
        TooHeavy: a single row may take more than the limits allow.
        ValueError: a page does not decompress, or its levels or entries do not parse.
    """
    found = _rows_that_fit(leaves, piece_rows, limits)
    for look in (LeafPages.look_into_dictionary, LeafPages.look_at_levels):
        # Somewhat smaller pieces cost less than a closer look.
        if found * _SMALLER_PIECES >= piece_rows:
            return found
        for leaf in leaves:
            look(leaf)
        found = _rows_that_fit(leaves, piece_rows, limits)
    _check_values(leaves, limits)
    if found == 0:
        heaviest = max(leaves, key=lambda leaf: leaf.nbytes(1))
        if heaviest.leaf.max_repetition and (nbytes := heaviest.nbytes(1)) > limits.row_nbytes:
            row = heaviest.longest_row
            what = "a row" if row is None else f"row {row:,}"
            raise TooHeavy(f'{what} of column "{heaviest.leaf.name}"', nbytes, row)
    return max(found, 1)


def _check_values(leaves: Sequence[LeafPages], limits: ReadLimits) -> None:
    """Raise if a page has so few values that one of them must be larger than a row may be."""
    for leaf in leaves:
        for page in leaf.pages if leaf.leaf.width is None else ():
            if not page.is_dictionary_encoded and page.uncompressed_nbytes > page.num_values * limits.row_nbytes:
                nbytes = page.uncompressed_nbytes // max(page.num_values, 1)
                raise TooHeavy(f'a value of column "{leaf.leaf.name}"', nbytes)


def _rows_that_fit(leaves: Sequence[LeafPages], piece_rows: int, limits: ReadLimits) -> int:
    """Return how many rows fit in a piece wherever they are, at most ``piece_rows``; perhaps 0."""
    if sum(leaf.total_nbytes / leaf.limit(limits) for leaf in leaves) <= 1:
        return piece_rows
    if (load := _load(leaves, piece_rows, limits)) <= 1:
        return piece_rows
    guess = int(piece_rows / load)
    if guess * _SMALLER_PIECES >= piece_rows and _load(leaves, guess, limits) <= 1:
        return guess
    return bisect.bisect_left(range(1, piece_rows + 1), 1, key=lambda num_rows: _load(leaves, num_rows, limits) > 1)


def _load(leaves: Sequence[LeafPages], num_rows: int, limits: ReadLimits) -> float:
    """Return the fraction of a piece's budget that this many rows can take in the worst case."""
    return sum(min(leaf.total_nbytes, leaf.nbytes(num_rows)) / leaf.limit(limits) for leaf in leaves)
