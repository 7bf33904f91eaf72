"""Single rows by number: the pieces that were decoded last are kept, because neighbours are often asked for next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np

from antifreeze.core import Manifest
from antifreeze.datasets._read_spec import ReadSpec
from antifreeze.decode import Decoded, StreamReader, ThreadProgress
from antifreeze.plan import Int64Array, view_of_rows

_KEPT_NBYTES = 64 << 20


class RowCache:
    """Finds rows by their number in a source. Threads may share it; they take turns.

    A row group can only be decoded from its beginning, so a row at the end of a large group costs the group, unless the
    row before it was asked for last.
    """

    def __init__(self, manifest: Manifest, spec: ReadSpec) -> None:
        self._sizes, self._spec = manifest.fragment_rows, spec
        self._reader = StreamReader(spec.decoding)
        self._pieces: OrderedDict[tuple[int, int], Decoded] = OrderedDict()
        self._nbytes = 0
        self._note = ThreadProgress("main thread")
        self._lock = threading.Lock()

    def get(self, rows: Int64Array) -> Decoded:
        """Return the rows with the given numbers, which ascend, as one block that shares no memory with another."""
        view = view_of_rows(self._sizes, rows)
        with self._lock:
            parts = [
                piece.take(wanted)
                for fragment, local in zip(view.fragment.tolist(), view.rows or (), strict=True)
                for piece, wanted in self._pieces_with(fragment, local)
            ]
        return self._spec.block.join(parts)

    def _pieces_with(self, fragment: int, rows: Int64Array) -> Iterator[tuple[Decoded, Int64Array]]:
        size = self._spec.decoding.piece_rows
        for number in np.unique(rows // size).tolist():
            wanted = rows[rows // size == number]
            if (piece := self._pieces.get((fragment, number))) is not None:
                self._pieces.move_to_end((fragment, number))
                yield piece, wanted - number * size
            else:
                yield from self._read(fragment, number, wanted)

    def _read(self, fragment: int, number: int, wanted: Int64Array) -> Iterator[tuple[Decoded, Int64Array]]:
        """Decode a piece, in several parts if its rows are heavy, and keep it unless they are."""
        size = self._spec.decoding.piece_rows
        begin, stop = number * size, min((number + 1) * size, self._sizes[fragment])
        parts: list[Decoded] = []
        nbytes = 0
        for part in self._reader.read(fragment, range(begin, stop), self._note):
            rows = wanted[(wanted >= begin) & (wanted < begin + part.num_rows)] - begin
            begin += part.num_rows
            nbytes += part.nbytes
            parts = [*parts, part] if nbytes <= _KEPT_NBYTES else []
            if len(rows):
                yield part, rows
            if not parts and begin > wanted[-1]:
                return
        self._keep((fragment, number), self._spec.block.join(parts))

    def _keep(self, key: tuple[int, int], piece: Decoded) -> None:
        self._pieces[key] = piece
        self._nbytes += piece.nbytes
        while self._nbytes > _KEPT_NBYTES and len(self._pieces) > 1:
            self._nbytes -= self._pieces.popitem(last=False)[1].nbytes
