"""A stream of fragments, decoded from front to back, that can be left and taken up again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from antifreeze.core import File, Format, Fragment, ManifestError, ReadLimits
from antifreeze.decode._block import Decoded
from antifreeze.decode._budget import OpenBudget
from antifreeze.decode._thread_progress import ThreadProgress
from antifreeze.formats import PieceLocation
from antifreeze.plan import Int64Array
from antifreeze.storage import check_file

_LARGE_PAGE = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decoding:
    """How the fragments of a dataset are turned into blocks."""

    format: Format
    files: Sequence[File]
    paths: Sequence[str]
    fragment_file: Sequence[int]
    fragment_group: Sequence[int]
    first_rows: Sequence[int]
    """For each fragment the number of its first row within its file."""
    fragment_rows: Sequence[int]
    file_rows: Sequence[int]
    """For each file how many rows all of its fragments have."""
    schema: Any
    """Arrow schema of what is read."""
    columns: tuple[str, ...]
    piece_rows: int
    limits: ReadLimits
    """What reading a fragment may take; where rows are large, fewer of them are decoded at a time."""
    page_nbytes: int
    """What a page of texts or bytes takes at worst, if rows are mostly these; otherwise 0."""
    to_block: Callable[[Any, int, PieceLocation], Decoded]
    """Record batch, file, where it stands -> block."""


def _check_manifest(d: Decoding, fragment: int, opened: Fragment) -> None:
    """Raise unless the manifest says of a file what its own footer says.

    Otherwise one with fewer rows would lose the others without a word.
    """
    file, group = d.fragment_file[fragment], d.fragment_group[fragment]
    path = d.paths[file]
    if opened.num_rows != d.fragment_rows[fragment]:
        what = f"row group {group} has {d.fragment_rows[fragment]:,} rows, and its footer says {opened.num_rows:,}"
    elif opened.file_rows != d.file_rows[file]:
        what = f"it has {d.file_rows[file]:,} rows in all, and its footer says {opened.file_rows:,}"
    else:
        wrong = [name for name in d.columns if opened.schema.field(name).type != d.schema.field(name).type]
        if not wrong:
            return
        types = f"{d.schema.field(wrong[0]).type}, and its footer says {opened.schema.field(wrong[0]).type}"
        what = f'column "{wrong[0]}" is {types}'
    raise ManifestError(
        f"the manifest says of {path} that {what}",
        hint="run index_parquet_dataset again, or delete the manifest: footers are then read when a dataset is opened",
        path=path,
    )


class StreamReader:
    """Reads rows of fragments, in ascending order as cheaply as can be: a piece is decoded once.

    A fragment can only be decoded from its beginning. Going back, or to another fragment, opens it again.
    """

    def __init__(self, decoding: Decoding, budget: OpenBudget | None = None) -> None:
        self._decoding = decoding
        self._budget = budget or OpenBudget(decoding.limits.open_nbytes)
        self._reading = threading.Lock()
        """Held while the open fragment is being read: nobody may close it then."""
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
            # Nothing here may hold what is yielded: its memory is used for the next piece while it is in the cache.
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
        """Have the piece that holds a row, decoding and dropping those before it."""
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
                # Reading a page, Arrow grows a buffer step by step, and its allocator keeps what the steps leave.
                pa.default_memory_pool().release_unused()
        if batch is not None:
            note.at("convert", d.paths[file], group, self._begin)
            file_row = d.first_rows[fragment] + self._begin
            where = PieceLocation(file=d.paths[file], row_group=group, first_row=self._begin, file_row=file_row)
            self._block = d.to_block(batch, file, where)

    def _part(self, rows: range | Int64Array) -> Decoded:
        """Return some rows of the piece at hand, and let go of it when its last row is among them."""
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
        """Close the fragment unless it is being read at this moment. It is opened again when it is needed."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            was_open = self._opened is not None
            self._shut()
        finally:
            self._reading.release()
        return was_open
