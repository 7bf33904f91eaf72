"""Decoded rows on their way to a batch, as arrays or, on request, as Arrow; and the memory that arrays are in."""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from antifreeze.plan import Int64Array

MAX_PASSES = 64
"""A window that needs more is rejected: it would be decoded repeatedly for hours."""
_SMALL = 1 << 20
_PAGE = 4096
_OBJECT_NBYTES = 64  # a small Python string or bytes object and the pointer to it


class Arena:
    """Allocates arrays, and reuses their memory once nothing references it.

    Fresh memory is what makes large batches slow: touching a page for the first time costs more than copying it.

    Guarantees: memory is reused only after the array, and every array or tensor made from it without a copy, are gone.
    The free memory that is kept is bounded. No lock is taken: the garbage collector may return memory in any thread and
    at any instruction, even during ``array``.
    """

    def __init__(self, kept_nbytes: int) -> None:
        self._kept_nbytes = kept_nbytes
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if dtype.hasobject or nbytes < _SMALL:
            return np.empty(shape, dtype)
        # Rounds differ by a few rows; rounding up to the next megabyte fits them all.
        size = -(-nbytes // _SMALL) * _SMALL
        free = self._free.setdefault(size, deque(maxlen=max(2, self._kept_nbytes // size)))
        try:
            owner = free.pop()
        except IndexError:
            owner = _aligned(size)
        # NumPy collapses chains of views to the array that is based on foreign memory. Going through a memoryview makes
        # ``lent`` that array: it lives exactly as long as any view of it.
        lent: npt.NDArray[Any] = np.frombuffer(owner.data, np.uint8)
        weakref.finalize(lent, free.append, owner).atexit = False
        return lent[:nbytes].view(dtype).reshape(shape)

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of a large array; return a small one unchanged."""
        if array.nbytes < _SMALL:
            return array
        copied = self.array(array.shape, array.dtype)
        copied[...] = array
        return copied


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return fresh page-aligned memory: rows that start at a cache line are copied a fifth faster."""
    raw = np.empty(nbytes + _PAGE, np.uint8)
    begin = -raw.ctypes.data % _PAGE
    return raw[begin : begin + nbytes]


class Block(Protocol):
    """Some consecutive rows. The holder of a block owns its memory: no other block shares it."""

    num_rows: int
    nbytes: int

    def slice(self, start: int, stop: int) -> Self:
        """Return some of the rows, without a copy if possible."""
        ...

    def detach(self, start: int, stop: int) -> tuple[Self, int, int]:
        """Return a block, and the range of some rows in it. They are not requested from this block again.

        Values that can be freed row by row are in that block alone.
        """
        ...

    def take(self, rows: Int64Array) -> Self:
        """Return the named rows, copied."""
        ...

    @classmethod
    def join(cls, blocks: Sequence[Self]) -> Self:
        """Return the rows of several blocks as one, copied."""
        ...


class Decoded(Block, Protocol):
    """Rows as a decoder produces them."""

    def settled(self, arena: Arena) -> Self:
        """Return the rows in memory that can be kept for a while."""
        ...

    @classmethod
    def scatter(cls, positions: Int64Array, arena: Arena, budget_nbytes: int) -> Scatter:
        """Return a scatter that puts the rows of a round at their positions in the plan."""
        ...


class Scatter(Protocol):
    """Collects the rows of one round, each at its position. Several threads may call ``put`` at once.

    Rows that do not fit in memory together are collected in several passes; each pass puts all rows again.
    """

    passes: Passes

    def put(self, first: int, block: Any) -> None:
        """Put a block whose first row is the ``first``-th of the round."""
        ...

    def finish(self) -> Decoded:
        """Return the rows of this pass, and start the next one. Called after every row was put."""
        ...


Columns = dict[str, npt.NDArray[Any]]


class Arrays:
    """Rows as one array per column; objects such as strings are in object arrays."""

    __slots__ = ("columns", "nbytes", "num_rows")

    def __init__(self, columns: Columns, num_rows: int, nbytes: int | None = None) -> None:
        self.columns = columns
        self.num_rows = num_rows
        self.nbytes = sum(_nbytes(c) for c in columns.values()) if nbytes is None else nbytes

    def slice(self, start: int, stop: int) -> Arrays:
        if start == 0 and stop == self.num_rows:
            return self
        part_nbytes = self.nbytes * (stop - start) // max(self.num_rows, 1)
        return Arrays({name: c[start:stop] for name, c in self.columns.items()}, stop - start, part_nbytes)

    def detach(self, start: int, stop: int) -> tuple[Arrays, int, int]:
        if not any(c.dtype.hasobject for c in self.columns.values()):
            return self, start, stop
        part_nbytes = self.nbytes * (stop - start) // max(self.num_rows, 1)
        columns = {name: _detached(c, start, stop) for name, c in self.columns.items()}
        return Arrays(columns, stop - start, part_nbytes), 0, stop - start

    def take(self, rows: Int64Array) -> Arrays:
        return Arrays({name: _taken(c, rows) for name, c in self.columns.items()}, len(rows))

    @classmethod
    def join(cls, blocks: Sequence[Arrays]) -> Arrays:
        names = blocks[0].columns
        joined = {name: np.concatenate([b.columns[name] for b in blocks]) for name in names}
        return Arrays(joined, sum(b.num_rows for b in blocks))

    def settled(self, arena: Arena) -> Arrays:
        """Copy large columns out of the decoder's memory.

        A copy costs a tenth of the decode. Keeping the decoder's memory costs up to half of it: freed memory goes back
        to the system at once, and fresh pages must be requested again.
        """
        columns = {name: arena.copy(c) if not c.dtype.hasobject else c for name, c in self.columns.items()}
        return Arrays(columns, self.num_rows, self.nbytes)

    @classmethod
    def scatter(cls, positions: Int64Array, arena: Arena, budget_nbytes: int) -> Scatter:
        return _ArrayScatter(positions, arena, budget_nbytes)


def _detached(column: npt.NDArray[Any], start: int, stop: int) -> npt.NDArray[Any]:
    """Return some items. Objects are moved: a window of images is freed as it is consumed, not after its last row."""
    part = column[start:stop]
    if not column.dtype.hasobject:
        return part
    moved = part.copy()
    part[...] = None
    return moved


def _taken(column: npt.NDArray[Any], rows: Int64Array) -> npt.NDArray[Any]:
    """Return some items, copied. An object array would share mutable items, such as ragged rows."""
    taken = column[rows]
    if column.dtype.hasobject and len(taken) and not isinstance(taken[0], (str, bytes)):
        return np.fromiter((copy.deepcopy(item) for item in taken), object, len(taken))
    return taken


def _nbytes(column: npt.NDArray[Any]) -> int:
    return int(column.nbytes) if not column.dtype.hasobject else len(column) * _OBJECT_NBYTES


class Passes:
    """Collects a shuffle window in several passes if it does not fit in memory. Not thread-safe.

    A window has a fixed number of rows, because the order of an epoch is arithmetic and must not depend on row sizes.
    How many rows fit was estimated from footers and from the first rows, and rows may be larger than that: a dictionary
    holds a long string once and refers to it in every row. Such a window is made in several passes over the same
    fragments. Each pass keeps the rows for the next positions only, as many as fit, and drops the others: the order is
    the same, and memory is bounded at the cost of decoding more than once.

    Guarantees: every pass delivers at least one row; the kept rows never exceed the budget by more than the piece that
    is being added. Assumed: a piece is small compared with the budget, or has one row (``ReadLimits``).
    """

    def __init__(self, num_positions: int, budget_nbytes: int) -> None:
        self.num_positions, self.budget_nbytes = num_positions, budget_nbytes
        self.low, self.high = 0, num_positions
        self.seen_nbytes = 0
        """Size of all rows that this pass has seen, kept or not."""
        self.kept_nbytes = 0.0
        """Size of the kept rows."""
        self._weights: npt.NDArray[np.float32] | None = None

    @property
    def is_complete(self) -> bool:
        """True if this pass collects the last position of the window."""
        return self.high == self.num_positions

    @property
    def is_too_heavy(self) -> bool:
        """True if a window of this size would take too many passes."""
        return self.seen_nbytes > MAX_PASSES * self.budget_nbytes

    def wanted(self, positions: Int64Array) -> npt.NDArray[np.bool_] | None:
        """Return which of these positions this pass collects; None for all."""
        if self.low == 0 and self.is_complete:
            return None
        return (positions >= self.low) & (positions < self.high)

    def add(self, positions: Int64Array, nbytes: int) -> bool:
        """Count rows that were put at these positions. Return True if that lowered ``high``: later rows are dropped."""
        if self._weights is None:
            self._weights = np.zeros(self.num_positions, np.float32)
        self._weights[positions] = nbytes / max(len(positions), 1)
        self.kept_nbytes += nbytes
        if self.kept_nbytes <= self.budget_nbytes or self.high - self.low <= 1:
            return False
        weights = np.cumsum(self._weights[self.low : self.high], dtype=np.float64)
        # Half of the budget: rows for earlier positions are still to come.
        count = max(1, int(np.searchsorted(weights, self.budget_nbytes / 2, side="right")))
        self._weights[self.low + count : self.high] = 0
        self.high = self.low + count
        self.kept_nbytes = float(weights[count - 1])
        return True

    def begin_next(self) -> None:
        """Start the next pass, after the positions of this one."""
        self.low, self.high = self.high, self.num_positions
        self.seen_nbytes, self.kept_nbytes = 0, 0.0


class _ArrayScatter:
    """Scatters each decoded piece to the positions of its rows while it is still in the cache.

    Tried: gathering each batch from decoded pieces. It needs the pieces and the batches in memory at the same time, and
    at batch size 8 the calls cost more than the copy. Tried: one buffer per batch. It needs a second copy.
    """

    def __init__(self, positions: Int64Array, arena: Arena, budget_nbytes: int) -> None:
        self._positions, self._arena = positions, arena
        self._columns: Columns = {}
        self._lock = threading.Lock()
        self.passes = Passes(len(positions), budget_nbytes)

    def put(self, first: int, block: Arrays) -> None:
        positions, columns, nbytes = self._positions[first : first + block.num_rows], block.columns, block.nbytes
        self.passes.seen_nbytes += nbytes
        if (wanted := self.passes.wanted(positions)) is not None:
            nbytes = nbytes * int(wanted.sum()) // max(block.num_rows, 1)
            positions, columns = positions[wanted], {name: values[wanted] for name, values in columns.items()}
        for name, values in columns.items():
            target = self._columns.get(name)
            if target is None:
                fresh = self._arena.array((len(self._positions), *values.shape[1:]), values.dtype)
                # Two threads may get here at once; ``setdefault`` is atomic, and the loser's array is released.
                target = self._columns.setdefault(name, fresh)
            target[positions] = values
        # Numeric columns are allocated at the start, at the planned size.
        if any(values.dtype.hasobject for values in columns.values()):
            with self._lock:
                if self.passes.add(positions, nbytes):
                    self._drop_from(self.passes.high)

    def _drop_from(self, position: int) -> None:
        for values in self._columns.values():
            if values.dtype.hasobject:
                values[position:] = None

    def finish(self) -> Arrays:
        passes = self.passes
        low, high = passes.low, passes.high
        if low == 0 and passes.is_complete:
            return Arrays(self._columns, high, max(passes.seen_nbytes, 1))
        self._drop_from(high)  # rows that another thread put there while this pass was shortened
        part, _, num_rows = Arrays(self._columns, len(self._positions)).detach(low, high)
        part = Arrays(part.columns, num_rows, int(passes.kept_nbytes))
        passes.begin_next()
        return part


class ArrowRows:
    """Rows as an Arrow table, as they were decoded."""

    __slots__ = ("nbytes", "num_rows", "table")

    def __init__(self, table: Any) -> None:
        self.table = table
        self.num_rows = table.num_rows
        self.nbytes = table.nbytes

    def slice(self, start: int, stop: int) -> ArrowRows:
        return ArrowRows(self.table.slice(start, stop - start))

    def detach(self, start: int, stop: int) -> tuple[ArrowRows, int, int]:
        return self, start, stop

    def take(self, rows: Int64Array) -> ArrowRows:
        return ArrowRows(self.table.take(pa.array(rows)))

    @classmethod
    def join(cls, blocks: Sequence[ArrowRows]) -> ArrowRows:
        return ArrowRows(pa.concat_tables([b.table for b in blocks]).combine_chunks())

    def settled(self, arena: Arena) -> ArrowRows:  # noqa: ARG002
        return self

    @classmethod
    def scatter(cls, positions: Int64Array, arena: Arena, budget_nbytes: int) -> Scatter:  # noqa: ARG003
        return _ArrowScatter(positions, budget_nbytes)


class _ArrowScatter:
    """Keeps the pieces of a round and reorders its rows at the end; Arrow arrays cannot be written in place."""

    def __init__(self, positions: Int64Array, budget_nbytes: int) -> None:
        self._positions = positions
        self._pieces: list[tuple[Int64Array, Any]] = []
        self._lock = threading.Lock()
        self.passes = Passes(len(positions), budget_nbytes)

    def put(self, first: int, block: ArrowRows) -> None:
        positions, table = self._positions[first : first + block.num_rows], block.table
        with self._lock:
            self.passes.seen_nbytes += block.nbytes
            self._pieces.append(self._kept(positions, table))
            kept, table = self._pieces[-1]
            if self.passes.add(kept, table.nbytes):
                self._pieces = [self._kept(*piece) for piece in self._pieces]

    def _kept(self, positions: Int64Array, table: Any) -> tuple[Int64Array, Any]:
        """Return the rows that this pass collects, copied: a slice would keep the memory of all."""
        wanted = self.passes.wanted(positions)
        if wanted is None or wanted.all():
            return positions, table
        return positions[wanted], table.take(pa.array(np.flatnonzero(wanted)))

    def finish(self) -> ArrowRows:
        positions = np.concatenate([positions for positions, _ in self._pieces])
        table = pa.concat_tables([table for _, table in self._pieces])
        self._pieces = []
        self.passes.begin_next()
        return ArrowRows(table.take(pa.array(np.argsort(positions))).combine_chunks())
