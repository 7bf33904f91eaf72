"""Parquet row groups, decoded piece by piece, with memory that is bounded whatever a file claims or holds.

What rows take is not known before they are decoded: a dictionary holds a text of 8 MB once, and every row may name it.
So an upper bound is computed from the headers of the pages, and pieces are made small enough for it. Three steps, each
taken only if the one before would make pieces very small, so that ordinary data costs a few additions:

1. the values of each page, times what a value can take at most: a fixed width, or the whole dictionary;
2. the longest entry of the dictionary, instead of its size;
3. the longest row of a nested column, from its repetition levels (``LongestRow``), instead of all values of the chunk.
"""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import (
    AntifreezeError,
    CorruptFile,
    DataError,
    ManifestError,
    ReadLimits,
    TooLarge,
    UnreadableFile,
    open_regular,
)
from antifreeze.formats._footers import Contents, read_contents
from antifreeze.formats._pages import (
    CODECS,
    UNCOMPRESSED,
    Chunk,
    Encoding,
    LeafType,
    LongestRow,
    Page,
    PageType,
    Read,
    longest_entry,
    page_body,
    walk_pages,
)

# Tried: memory-mapping saves the copy out of the page cache (about 7 % of the decode), but a file that is truncated
# while it is mapped kills the process with SIGBUS, and no error message survives that.
# Tried: reading a column chunk whole, as pyarrow does by default. It costs page faults, and every open fragment then
# holds its compressed data in memory. Reading it in parts, Arrow allocates what a page header claims: see ``_pages``.
_BUFFER_NBYTES = 256 << 10
_OBJECT_NBYTES = 64
"""What a text or byte string takes beside its characters, as a Python object."""
_LEVELS_NBYTES = 5
"""What Arrow keeps for each value of a nested column: two levels, and whether it is null."""
_POINTER_NBYTES = 16
"""What Arrow keeps for each entry of a dictionary of byte strings."""
_SMALLER_PIECES = 2
_HUGE = 1 << 62


@functools.lru_cache(maxsize=64)
def _contents(path: str, size: int, mtime_ns: int) -> Contents:  # noqa: ARG001  (size and time are the cache's key)
    """Return the parsed footer; parsing it for each of a file's many row groups would cost more than reading."""
    return read_contents(path)


class Parquet:
    """Reads Parquet files. One fragment is one row group."""

    def open(
        self, path: str, group: int, columns: Sequence[str], piece_rows: int, limits: ReadLimits
    ) -> ParquetFragment:
        """Open a row group. Nothing is decoded yet, and what its pages claim is checked."""
        try:
            status = Path(path).stat()
            contents = _contents(path, status.st_size, status.st_mtime_ns)
            if group >= len(contents.group_rows):
                # The file is as large and as old as the manifest says, so that it was not replaced.
                raise ManifestError(
                    f"the manifest names row group {group} of {path}, which has {len(contents.group_rows)} row groups",
                    hint="run index_parquet_dataset again, or delete the manifest: footers are then read when a "
                    "dataset is opened",
                    path=path,
                )
            nbytes, piece_rows = _weighed(path, contents, group, columns, piece_rows, limits)
            metadata, number = contents.metadata(group)
            file = pq.ParquetFile(
                path, metadata=metadata, buffer_size=_BUFFER_NBYTES, pre_buffer=False, page_checksum_verification=True
            )
        except AntifreezeError:  # some of these are errors of the system, too
            raise
        except TooHeavy as error:
            raise _too_large(path, group, error, limits) from error
        except (OSError, pa.ArrowException) as error:
            raise _failed(path, group, 0, error) from error
        return ParquetFragment(file, number, contents, path, group, tuple(columns), piece_rows, nbytes)


def _weighed(
    path: str, contents: Contents, group: int, columns: Sequence[str], piece_rows: int, limits: ReadLimits
) -> tuple[int, int]:
    """Return what a row group holds while it is read, and how many rows to decode at a time."""
    handle = open_regular(path)

    def read(offset: int, size: int) -> bytes:
        return os.pread(handle, size, offset)

    try:
        leaves: list[LeafPages] = []
        for leaf, chunk in contents.chunks(group, columns):
            try:
                leaves.append(LeafPages(leaf, chunk, contents.data_stop, read))
            except ValueError as error:
                raise ValueError(f'column "{leaf.name}": {error}') from error
        return _open_nbytes(leaves, limits), _rows_at_a_time(leaves, piece_rows, limits)
    except ValueError as error:
        raise _corrupt(path, group, 0, error) from error
    finally:
        os.close(handle)


class ParquetFragment:
    """One opened row group."""

    def __init__(
        self,
        file: Any,
        number: int,
        contents: Contents,
        path: str,
        group: int,
        columns: tuple[str, ...],
        piece_rows: int,
        nbytes: int,
    ) -> None:
        self._file, self._number, self._path, self._group = file, number, path, group
        self._columns, self._piece_rows = columns, piece_rows
        self.nbytes = nbytes
        self.num_rows, self.file_rows = contents.group_rows[group], contents.num_rows
        self.schema = contents.schema

    def pieces(self) -> Iterator[Any]:
        """Yield the rows from front to back as record batches."""
        row = 0
        # ``use_threads=False``: the decoder runs in the calling thread and nowhere else, so that our threads are the
        # only ones, and a limit on cores is respected.
        options = {"columns": list(self._columns), "use_threads": False, "row_groups": [self._number]}
        try:
            for batch in self._file.iter_batches(self._piece_rows, **options):
                for column in batch.columns:
                    if pa.types.is_dictionary(column.type):  # Arrow does not check that its indices have an entry
                        column.validate(full=True)
                yield batch.select(self._columns) if batch.schema.names != list(self._columns) else batch
                row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, self._group, row, error) from error
        if row != self.num_rows:
            reason = f"its footer promises {self.num_rows} rows and its pages hold {row}"
            raise _corrupt(self._path, self._group, row, reason)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _failed(path: str, group: int, row: int, error: Exception) -> DataError:
    """Distinguish a damaged file from one that the system cannot read: only the latter has an errno."""
    number = getattr(error, "errno", None)
    if not number:
        return _corrupt(path, group, row, error)
    return UnreadableFile(
        f"{path}, row group {group} cannot be read: {os.strerror(number)}",
        hint="check the file's permissions, the limit on open files (ulimit -n), and the health of the disk or mount",
        file=path,
        row_group=group,
        row=row,
        errno=number,
    )


def _corrupt(path: str, group: int, row: int, reason: object) -> CorruptFile:
    return CorruptFile(
        f"{path}, row group {group}: the rows from {row} on cannot be decoded: {reason}",
        hint="the file is damaged: restore it from its origin, or leave it out; rows before these were delivered",
        file=path,
        row_group=group,
        row=row,
    )


def _too_large(path: str, group: int, error: TooHeavy, limits: ReadLimits) -> TooLarge:
    return TooLarge(
        f"{path}, row group {group}: {error.what} may take {error.nbytes / 1e6:,.0f} MB, which does not fit in "
        f"memory_limit={limits.memory_limit / 1e6:,.0f} MB",
        hint="raise memory_limit, leave the column out with columns=[...], or write smaller values or pages",
        file=path,
        row_group=group,
        row=error.row,
        nbytes=error.nbytes,
        limit=limits.memory_limit,
    )


# -- how many rows fit ---------------------------------------------------------------------------------------------


class TooHeavy(Exception):
    """Something does not fit; for the caller, who knows the file."""

    def __init__(self, what: str, nbytes: int, row: int | None = None) -> None:
        super().__init__(what, nbytes, row)
        self.what, self.nbytes, self.row = what, nbytes, row


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


def _open_nbytes(leaves: Sequence[LeafPages], limits: ReadLimits) -> int:
    """Return what the fragment holds while it is read.

    Raises:
        TooHeavy: it is more than the limits allow.
    """
    total = sum(leaf.open_nbytes for leaf in leaves)
    if total > limits.open_nbytes:
        heaviest = max(leaves, key=lambda leaf: leaf.open_nbytes)
        raise TooHeavy(f'the pages of column "{heaviest.leaf.name}"', total)
    return total


def _rows_at_a_time(leaves: Sequence[LeafPages], piece_rows: int, limits: ReadLimits) -> int:
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
