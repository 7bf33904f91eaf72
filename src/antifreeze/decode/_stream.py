"""A stream of fragments, decoded sequentially, that can be paused and resumed; and what all streams may hold open."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from antifreeze.core import File, Format, Fragment, ManifestError, ReadLimits
from antifreeze.decode._block import Decoded
from antifreeze.decode._thread_progress import ThreadProgress
from antifreeze.formats import PieceLocation
from antifreeze.plan import Int64Array
from antifreeze.storage import check_file

_LARGE_PAGE = 4 << 20
_WAIT_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """How the fragments of a dataset are turned into blocks."""

    format: Format
    files: Sequence[File]
    paths: Sequence[str]
    fragment_file: Sequence[int]
    fragment_group: Sequence[int]
    first_rows: Sequence[int]
    """For each fragment, the number of its first row in its file."""
    fragment_rows: Sequence[int]
    file_rows: Sequence[int]
    """For each file, the number of rows of all its fragments."""
    schema: Any
    """Arrow schema of what is read."""
    columns: tuple[str, ...]
    piece_rows: int
    limits: ReadLimits
    """Memory limits for reading a fragment; if rows are large, fewer are decoded at a time."""
    page_nbytes: int
    """Maximum size of a page of strings or bytes, if rows consist mostly of these; otherwise 0."""
    to_block: Callable[[Any, int, PieceLocation], Decoded]
    """Record batch, file, location -> block."""


def _check_manifest(d: Decoding, fragment: int, opened: Fragment) -> None:
    """Raise ``ManifestError`` unless the manifest matches the footer of a file.

    Otherwise a manifest with fewer rows would silently lose the others.
    """
    file, group = d.fragment_file[fragment], d.fragment_group[fragment]
    path = d.paths[file]
    if opened.num_rows != d.fragment_rows[fragment]:
        what = f"row group {group}: expected {d.fragment_rows[fragment]:,} rows, got {opened.num_rows:,}"
    elif opened.file_rows != d.file_rows[file]:
        what = f"expected {d.file_rows[file]:,} rows in total, got {opened.file_rows:,}"
    else:
        wrong = [name for name in d.columns if opened.schema.field(name).type != d.schema.field(name).type]
        if not wrong:
            return
        types = f"expected {d.schema.field(wrong[0]).type}, got {opened.schema.field(wrong[0]).type}"
        what = f'column "{wrong[0]}": {types}'
    raise ManifestError(
        f"the manifest does not match the footer of {path}: {what}",
        hint="run index_parquet_dataset again, or delete the manifest to read footers when a dataset is opened",
        path=path,
    )


class StreamReader:
    """Reads rows of fragments; in ascending order each piece is decoded only once.

    A fragment can only be decoded from its start. Going back, or to another fragment, reopens it.
    """

    def __init__(self, decoding: Decoding, budget: OpenBudget | None = None) -> None:
        self._decoding = decoding
        self._budget = budget or OpenBudget(decoding.limits.open_nbytes)
        self._reading = threading.Lock()
        """Held while the open fragment is being read, so that it is not closed meanwhile."""
        self._fragment = -1
        self._opened: Fragment | None = None
        self._pieces: Iterator[Any] = iter(())
        self._block: Decoded | None = None
        self._begin = self._end = 0

    def read(self, fragment: int, rows: range | Int64Array, note: ThreadProgress) -> Iterator[Decoded]:
        """Yield the given rows, which ascend, in blocks."""
        while len(rows):
            with self._reading:
                if fragment != self._fragment or rows[0] < self._begin:
                    self._open(fragment, note)
                self._reach(int(rows[0]), note)
            count = (
                min(len(rows), self._end - rows[0])
                if isinstance(rows, range)
                else int(np.searchsorted(rows, self._end))
            )
            # Nothing here may reference what is yielded: its memory is reused for the next piece, still in the cache.
            yield self._part(rows[:count])
            rows = rows[count:]

    def _open(self, fragment: int, note: ThreadProgress) -> None:
        self.close()
        d = self._decoding
        file, group = d.fragment_file[fragment], d.fragment_group[fragment]
        path = d.paths[file]
        note.at("open", path, group)
        check_file(path, d.files[file])
        opened = d.format.open(path, group, d.columns, d.piece_rows, d.limits)
        _check_manifest(d, fragment, opened)
        self._budget.reserve(self, opened.nbytes)
        self._opened, self._pieces = opened, opened.pieces()
        self._fragment = fragment
        self._begin = self._end = 0

    def _reach(self, row: int, note: ThreadProgress) -> None:
        """Decode up to the piece that holds ``row``, dropping earlier pieces."""
        d, fragment = self._decoding, self._fragment
        file, group = d.fragment_file[fragment], d.fragment_group[fragment]
        was_given_away = self._begin <= row < self._end and self._block is None
        was_evicted = row >= self._end and self._opened is None
        if was_given_away or was_evicted:
            self._open(fragment, note)
        batch = None
        while row >= self._end:
            self._block = batch = None
            note.at("decode", d.paths[file], group, self._end)
            batch = next(self._pieces)
            self._begin, self._end = self._end, self._end + batch.num_rows
            if self._begin == 0 and d.page_nbytes >= _LARGE_PAGE:
                # Arrow grows a buffer in steps while it reads a page, and its allocator keeps the memory of the steps.
                pa.default_memory_pool().release_unused()
        if batch is not None:
            note.at("convert", d.paths[file], group, self._begin)
            file_row = d.first_rows[fragment] + self._begin
            where = PieceLocation(file=d.paths[file], row_group=group, first_row=self._begin, file_row=file_row)
            self._block = d.to_block(batch, file, where)

    def _part(self, rows: range | Int64Array) -> Decoded:
        """Return some rows of the current piece, and release it after its last row."""
        block, begin = self._block, self._begin
        assert block is not None  # noqa: S101
        if rows[-1] == self._end - 1:
            self._block = None
        if isinstance(rows, range):
            return block.slice(rows[0] - begin, rows[-1] + 1 - begin)
        return block.take(rows - begin)

    def close(self) -> None:
        """Close the open fragment, if there is one."""
        self._shut()
        self._block, self._fragment = None, -1

    def _shut(self) -> None:
        if self._opened is not None:
            self._pieces = iter(())
            self._opened.close()
            self._opened = None
        self._budget.release(self)

    def try_evict(self) -> bool:
        """Close the fragment unless it is being read. It is reopened when it is needed."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            was_open = self._opened is not None
            self._shut()
        finally:
            self._reading.release()
        return was_open


class OpenBudget:
    """Limits the memory that the open fragments of an epoch hold together. Used by all its decoder threads.

    A shuffled epoch has several fragments open at a time, and each holds a page and a dictionary of every column. How
    many can be open was planned from footers, which do not give the size of a page. So the actual memory of a fragment
    is counted when it is opened. If it does not fit, fragments that are not being read are closed. Their readers reopen
    them and skip to where they were: slower, but the same rows.

    Guarantees: nothing waits for the consumer or for another stream, so no order of events can deadlock. A thread waits
    only while others are inside a decode, which ends. Open fragments never exceed the limit, except when a single
    fragment does: it is opened anyway if nothing else is open.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._changed = threading.Condition()
        self._held: dict[StreamReader, int] = {}

    def reserve(self, reader: StreamReader, nbytes: int) -> None:
        """Reserve memory for a fragment that a reader is about to open. The reader must hold nothing."""
        while others := self._try_reserve(reader, nbytes):
            # Order: outside of the lock, because evicting releases. The first opened has the least left to read.
            if not any(other.try_evict() for other in others):
                with self._changed:
                    self._changed.wait(_WAIT_INTERVAL_S)

    def _try_reserve(self, reader: StreamReader, nbytes: int) -> list[StreamReader]:
        """Reserve memory, or return the readers that hold it."""
        with self._changed:
            if self._held and sum(self._held.values()) + nbytes > self._limit:
                return list(self._held)
            self._held[reader] = nbytes
            return []

    def release(self, reader: StreamReader) -> None:
        """Release the memory of a reader, if it reserved any."""
        with self._changed:
            if self._held.pop(reader, None) is not None:
                self._changed.notify_all()
