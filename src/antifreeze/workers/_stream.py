"""A stream of fragments, decoded from front to back, that can be left and taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antifreeze.core import File, Format, Fragment
from antifreeze.formats import Where
from antifreeze.plan import Longs
from antifreeze.storage import check_file
from antifreeze.workers._block import Block
from antifreeze.workers._board import Note


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
    columns: tuple[str, ...]
    piece_rows: int
    to_block: Callable[[Any, int, Where], Block]
    """Record batch, file, where it stands -> block."""


class StreamReader:
    """Reads rows of fragments, in ascending order as cheaply as can be: a piece is decoded once.

    A fragment can only be decoded from its beginning. Going back, or to another fragment, opens it anew.
    """

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._fragment = -1
        self._opened: Fragment | None = None
        self._pieces: Iterator[Any] = iter(())
        self._batch: Any = None
        self._block: Block | None = None
        self._begin = self._end = 0

    def read(self, fragment: int, rows: range | Longs, note: Note) -> Iterator[Block]:
        """Yield the given rows, which ascend, in blocks."""
        if len(rows) and (fragment != self._fragment or rows[0] < self._begin):
            self._open(fragment, note)
        while len(rows):
            block = self._piece_with(int(rows[0]), note)
            offset = self._begin
            if isinstance(rows, range):
                count = min(len(rows), self._end - rows[0])
                part = block.slice(rows[0] - offset, rows[0] - offset + count)
            else:
                count = int(np.searchsorted(rows, self._end))
                part = block.take(rows[:count] - offset)
            rows = rows[count:]
            if not len(rows) and part.num_rows == block.num_rows:
                self._block = None  # delivered whole: keeping it here would hold its memory
            del block
            yield part

    def _open(self, fragment: int, note: Note) -> None:
        self.close()
        d = self._decoding
        file, group = d.fragment_file[fragment], d.fragment_group[fragment]
        path = d.paths[file]
        note.at("open", path, group)
        check_file(path, d.files[file])
        self._opened = d.format.open(path, group, d.columns, d.piece_rows)
        self._pieces = self._opened.pieces()
        self._fragment = fragment
        self._begin = self._end = 0

    def _piece_with(self, row: int, note: Note) -> Block:
        """Return the piece that holds a row, decoding and dropping those before it."""
        d, fragment = self._decoding, self._fragment
        file, group = d.fragment_file[fragment], d.fragment_group[fragment]
        while row >= self._end:
            self._batch = self._block = None
            note.at("decode", d.paths[file], group, self._end)
            self._batch = next(self._pieces)
            self._begin, self._end = self._end, self._end + self._batch.num_rows
        if self._block is None:
            if self._batch is None:  # its block was delivered whole, and is asked for again
                self._open(fragment, note)
                return self._piece_with(row, note)
            note.at("convert", d.paths[file], group, self._begin)
            where = Where(
                file=d.paths[file],
                row_group=group,
                first_row=self._begin,
                file_row=d.first_rows[fragment] + self._begin,
            )
            self._block, self._batch = d.to_block(self._batch, file, where), None
        return self._block

    def close(self) -> None:
        """Close the open fragment, if there is one."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._batch = self._block = None
        self._pieces, self._fragment = iter(()), -1
