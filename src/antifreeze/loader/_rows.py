"""Single rows by number: the pieces that were decoded last are kept, because neighbours are often asked for next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from antifreeze.core import Manifest
from antifreeze.loader._recipe import Recipe
from antifreeze.plan import Longs, view_of_rows
from antifreeze.workers import Decoded, Note, StreamReader

_KEPT_NBYTES = 64 << 20


class RowCache:
    """Finds rows by their number in a source. Threads may share it; they take turns.

    A row group can only be decoded from its beginning, so a row at the end of a large group costs the group, unless the
    row before it was asked for last.
    """

    def __init__(self, manifest: Manifest, recipe: Recipe) -> None:
        self._sizes, self._recipe = manifest.fragment_rows, recipe
        self._reader = StreamReader(recipe.decoding)
        self._pieces: OrderedDict[tuple[int, int], Decoded] = OrderedDict()
        self._nbytes = 0
        self._note = Note("main thread")
        self._lock = threading.Lock()

    def get(self, rows: Longs) -> Decoded:
        """Return the rows with the given numbers, which ascend, as one block that shares no memory with another."""
        view = view_of_rows(self._sizes, rows)
        with self._lock:
            parts = [
                piece.take(wanted)
                for fragment, local in zip(view.fragment.tolist(), view.rows or (), strict=True)
                for piece, wanted in self._pieces_with(fragment, local)
            ]
        return self._recipe.block.join(parts)

    def _pieces_with(self, fragment: int, rows: Longs) -> Iterator[tuple[Decoded, Longs]]:
        size = self._recipe.decoding.piece_rows
        for number in np.unique(rows // size).tolist():
            wanted = rows[rows // size == number] - number * size
            yield self._piece(fragment, number), wanted

    def _piece(self, fragment: int, number: int) -> Decoded:
        key = (fragment, number)
        if key in self._pieces:
            self._pieces.move_to_end(key)
            return self._pieces[key]
        size = self._recipe.decoding.piece_rows
        rows = range(number * size, min((number + 1) * size, self._sizes[fragment]))
        piece = self._recipe.block.join(list(self._reader.read(fragment, rows, self._note)))
        self._pieces[key] = piece
        self._nbytes += piece.nbytes
        while self._nbytes > _KEPT_NBYTES and len(self._pieces) > 1:
            self._nbytes -= self._pieces.popitem(last=False)[1].nbytes
        return piece
