"""The rows of some files: which of them, in which order, and how they are read. Knows nothing of user code."""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from antifreeze.core import ConfigError, Manifest
from antifreeze.datasets._delivery import Delivery, make_delivery, tracked_block
from antifreeze.datasets._read_spec import Projection, ReadSpec, column_types, make_read_spec
from antifreeze.datasets._reading import (
    ReadOptions,
    RunShape,
    Selection,
    make_order,
    make_run_shape,
    parse_limit,
    read_blocks,
)
from antifreeze.datasets._row_source import ReadRequest
from antifreeze.datasets._source import DataSource
from antifreeze.decode import Block, Blocks, Decoded, StreamReader, ThreadProgress, bounded
from antifreeze.formats import PieceLocation
from antifreeze.plan import Int64Array, Lanes, Order, locate, view_of_rows


class FileRows:
    """The ``RowSource`` of a ``StreamingDataset``.

    What it makes while rows are read, and the epoch, stay behind when it is pickled: workers of a later epoch come from
    the same template process only if the dataset's pickle has not changed.
    """

    continues = False

    def __init__(self, source: DataSource, projection: Projection, pad: object, selection: Selection = None) -> None:
        self.source, self.projection = source, projection
        self._pad, self._selection = pad, selection
        self.epoch = 0
        """The epoch that is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return FileRows, (self.source, self.projection, self._pad, self._selection)

    def __len__(self) -> int:
        return self.source.manifest.num_rows if self._selection is None else len(self._selection)

    # -- what is made of the first rows ----------------------------------------------------------------------------

    @cached_property
    def spec(self) -> ReadSpec:
        """How the rows are read."""
        return make_read_spec(self.source, self.projection, ThreadProgress("main thread"), parse_limit(None))

    def look(self, limit_s: float | None, memory_limit: int | None = None) -> None:
        """Read the first rows and decide how to read all: in this thread, or bounded in how long nothing moves."""
        if "spec" in self.__dict__:
            return

        def make(note: ThreadProgress) -> ReadSpec:
            return make_read_spec(self.source, self.projection, note, parse_limit(memory_limit))

        self.spec = make(ThreadProgress("main thread")) if limit_s is None else bounded(make, limit_s)

    @cached_property
    def delivery(self) -> Delivery:
        return make_delivery(self.projection.format, self.spec.leaves, self._pad)

    @cached_property
    def _row_cache(self) -> RowCache:
        return RowCache(self.source.manifest, self.spec)

    # -- which rows ------------------------------------------------------------------------------------------------

    def select(self, rows: Any) -> FileRows:
        """Return some of the rows: by a slice, a range, their numbers, or a mask. Raises ConfigError, IndexError."""
        size, whole = len(self), range(len(self)) if self._selection is None else self._selection
        if isinstance(rows, slice):
            rows = range(*rows.indices(size))
        if isinstance(rows, range) and rows.step == 1 and 0 <= rows.start <= rows.stop <= size:
            selection: Selection = whole[rows.start : rows.stop]
        else:
            numbers = np.asarray(rows)
            if numbers.dtype == bool and len(numbers) == size:
                numbers = np.flatnonzero(numbers)
            selection = self._in_source(_check_numbers(numbers if numbers.size else np.empty(0, np.int64), size))
        return FileRows(self.source, self.projection, self._pad, selection)

    def _in_source(self, numbers: Int64Array) -> Int64Array:
        """Return the numbers in the source of rows by their numbers here."""
        found: Int64Array = numbers if self._selection is None else np.asarray(self._selection)[numbers]
        return found

    def number_of(self, row: int) -> int:
        """Return the number here of a row of the source; of several, the first."""
        if isinstance(self._selection, range):
            return row - self._selection.start
        if self._selection is None:
            return row
        rows, numbers = self._numbers_by_row
        return int(numbers[np.searchsorted(rows, row)])

    @cached_property
    def _numbers_by_row(self) -> tuple[Int64Array, Int64Array]:
        selection = np.asarray(self._selection)
        numbers = np.argsort(selection, kind="stable")
        return selection[numbers], numbers

    def take(self, numbers: Int64Array) -> Block:
        """Return rows by their numbers here, in any order."""
        rows = self._in_source(numbers)
        ascending = np.argsort(rows, kind="stable")
        block = self._row_cache.get(rows[ascending])
        back = np.empty_like(ascending)
        back[ascending] = np.arange(len(ascending))
        return block.take(back)

    def name_of(self, number: int) -> str:
        """Return the location of a row by its number here, as text."""
        row = self._in_source(np.array([number]))
        return self._name(*view_of_rows(self.source.manifest.fragment_rows, row).locate(0, 0))

    # -- what a loader reads, see RowSource ------------------------------------------------------------------------

    def column_types(self) -> dict[str, str]:
        return column_types(self.source, self.projection.columns)

    def in_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def num_rows(self, lanes: int, global_batch: int) -> int:  # noqa: ARG002
        return len(self)

    def num_shapes(self) -> int:
        return 1

    def num_fragments(self) -> int:
        return self.source.manifest.num_fragments

    def facts(self) -> dict[str, Any]:
        return {"rows": len(self), "data": self._fingerprint}

    @cached_property
    def _fingerprint(self) -> str:
        """A number that changes with the rows; not with where they are stored, so that a run can move."""
        manifest, found = self.source.manifest, hashlib.blake2b(digest_size=8)
        for numbers in (manifest.fragment_rows, manifest.fragment_group, array("q", [f.size for f in manifest.files])):
            found.update(numbers.tobytes())
        selection = self._selection
        found.update(selection.tobytes() if isinstance(selection, np.ndarray) else repr(selection).encode())
        return found.hexdigest()

    def shapes(self, lanes: int, memory_limit: int | None) -> tuple[RunShape, ...]:
        return (make_run_shape(self.spec, lanes, memory_limit),)

    def _order(self, reading: ReadRequest) -> Order:
        shuffled = (reading.seed, reading.epoch) if reading.shuffle else None
        return make_order(self.source.manifest, self._selection, reading.lanes, reading.shapes[0], shuffled)

    def blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        spec = self.spec if reading.first_leaf is None else _tracked(self.spec, reading.first_leaf)
        return read_blocks(self._order(reading), spec, position, options)

    def _located(self, reading: ReadRequest, sample: int) -> tuple[int, int]:
        """Return the fragment and the row in it that has a number in the epoch."""
        number, lane = divmod(sample, reading.lanes.total)
        alone = reading._replace(lanes=Lanes(reading.lanes.total, lane, reading.lanes.total))
        return locate(self._order(alone), number)

    def sample_name(self, reading: ReadRequest, sample: int) -> str:
        return self._name(*self._located(reading, sample))

    def sample(self, reading: ReadRequest, sample: int) -> Block:
        fragment, row = self._located(reading, sample)
        rows = np.array([sum(self.source.manifest.fragment_rows[:fragment]) + row])
        block = self._row_cache.get(rows)
        return block if reading.first_leaf is None else tracked_block(block, reading.first_leaf, rows)

    def _name(self, fragment: int, row: int) -> str:
        decoding = self.spec.decoding
        path = decoding.paths[decoding.fragment_file[fragment]]
        return f"{path}, row {decoding.first_rows[fragment] + row} of the file"


def _check_numbers(numbers: Any, size: int) -> Any:
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise ConfigError(
            f"rows are of type {numbers.dtype} and shape {numbers.shape}, not a list of integers",
            hint="pass a slice, a range, a list of row numbers, or a mask with one bool for each row",
            argument="rows",
        )
    if len(numbers) and not (-size <= numbers.min() and numbers.max() < size):
        raise IndexError(f"rows from {numbers.min()} to {numbers.max()} of a dataset of {size} rows")
    return np.where(numbers < 0, numbers + size, numbers).astype(np.int64)


def _tracked(spec: ReadSpec, leaf: int) -> ReadSpec:
    """Return a read spec whose blocks have tracks."""
    to_block, file_rows = spec.decoding.to_block, np.asarray(spec.decoding.file_rows)
    first_rows = (np.cumsum(file_rows) - file_rows).tolist()

    def to_tracked(batch: Any, file: int, where: PieceLocation) -> Decoded:
        first, number = first_rows[file] + where.file_row, batch.num_rows
        found: Decoded = tracked_block(to_block(batch, file, where), leaf, np.arange(first, first + number))
        return found

    return replace(spec, decoding=replace(spec.decoding, to_block=to_tracked))


# -- single rows ----------------------------------------------------------------------------------------------------

_KEPT_NBYTES = 64 << 20


class RowCache:
    """Finds rows by their number in a source. Threads may share it; they take turns.

    The pieces that were decoded last are kept, because neighbors are often asked for next.
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
        piece = self._spec.block.join(parts)
        self._pieces[fragment, number] = piece
        self._nbytes += piece.nbytes
        while self._nbytes > _KEPT_NBYTES and len(self._pieces) > 1:
            self._nbytes -= self._pieces.popitem(last=False)[1].nbytes
