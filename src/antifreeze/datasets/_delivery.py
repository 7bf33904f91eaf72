"""In which form rows reach the user: torch tensors, NumPy arrays or Arrow.

Rows that user code makes one by one have a track: which row of which dataset they are, in a column that goes with them
through shuffling and mixing. A dataset that is made of others numbers its leaves, the datasets in it, from left to
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from antifreeze.core import ConfigError
from antifreeze.datasets._to_batch import collate, finisher, row_of
from antifreeze.decode import Arrays, ArrowRows
from antifreeze.formats import Leaf
from antifreeze.plan import Int64Array

FORMATS = ("torch", "numpy", "arrow")
_TRACKS = "\0tracks"
"""The name of the column. No writer of Parquet puts a zero byte in one."""
_ROW_BITS = 48  # no file claims more rows than this, see ``formats``

Batch = Any
Row = dict[str, Any]


class Delivery(Protocol):
    """Makes what the user sees."""

    parts: tuple[Delivery, ...] = ()
    """Those of the datasets side by side, if a batch is a tuple."""

    def batch(self, block: Any, start: int, stop: int) -> Batch:
        """Return some rows of a block as a batch."""
        ...

    def tracks(self, block: Any, start: int, stop: int) -> Any:
        """Return the tracks of some rows of a block, or None if it was read without."""
        ...

    def row(self, batch: Batch, i: int) -> Row:
        """Return one row: for each column what ``batch[column][i]`` gives."""
        ...

    def parted(self, batch: Batch) -> Batch:
        """Return the batch in a form of which ``row`` is cheap to take, one after the other."""
        return batch

    def collate(self, rows: Sequence[Any]) -> Batch:
        """Return rows, after a transform, as a batch."""
        ...

    def pin(self, batch: Batch) -> Batch:
        """Return the batch in page-locked memory, where that means something."""
        return batch

    def sendable(self, block: Any, start: int, stop: int) -> Any:
        """Return some rows of a block in a form that can be sent to a worker."""
        ...

    def received(self, value: Any) -> Any:
        """Return what was sent as a block."""
        ...


class _NumpyDelivery(Delivery):
    def __init__(self, leaves: Sequence[Leaf], pad: object) -> None:
        self._made_of = (leaves, pad)
        self._finish = finisher(leaves, pad)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of

    def batch(self, block: Arrays, start: int, stop: int) -> Batch:
        return self._finish(block.columns, start, stop)

    def tracks(self, block: Arrays, start: int, stop: int) -> Any:
        return block.columns[_TRACKS][start:stop] if _TRACKS in block.columns else None

    def row(self, batch: Batch, i: int) -> Row:
        return row_of(batch, i)

    def collate(self, rows: Sequence[Any]) -> Batch:
        return collate(rows)

    def sendable(self, block: Arrays, start: int, stop: int) -> Any:
        return {name: column[start:stop] for name, column in block.columns.items()}

    def received(self, value: Any) -> Arrays:
        return Arrays(value, len(next(iter(value.values()))), 0)


class _TorchDelivery(_NumpyDelivery):
    def __init__(self, leaves: Sequence[Leaf], pad: object) -> None:
        self._made_of, self._torch = (leaves, pad), _torch()
        self._finish = self._torch.finisher(leaves, pad)

    def parted(self, batch: Batch) -> Batch:
        return self._torch.parted(batch)

    def collate(self, rows: Sequence[Any]) -> Batch:
        return self._torch.collate(rows)

    def pin(self, batch: Batch) -> Batch:
        return self._torch.pin(batch)


class _ArrowDelivery(Delivery):
    def batch(self, block: ArrowRows, start: int, stop: int) -> Batch:
        table = block.table.slice(start, stop - start)
        if _TRACKS in table.schema.names:
            table = table.drop_columns([_TRACKS])
        return table.combine_chunks().to_batches()[0]

    def tracks(self, block: ArrowRows, start: int, stop: int) -> Any:
        if _TRACKS not in block.table.schema.names:
            return None
        return block.table.column(_TRACKS).slice(start, stop - start).to_numpy()

    def row(self, batch: Batch, i: int) -> Row:
        return {name: batch.column(name)[i] for name in batch.schema.names}

    def collate(self, rows: Sequence[Any]) -> Batch:
        return list(rows)

    def sendable(self, block: ArrowRows, start: int, stop: int) -> Any:
        # A pickled slice would bring all of the table that it is a slice of.
        sink = pa.BufferOutputStream()
        table = block.table.slice(start, stop - start)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def received(self, value: Any) -> ArrowRows:
        return ArrowRows(pa.ipc.open_stream(value).read_all())


def check_format(name: str) -> None:
    """Raise unless the format is known and can be had here."""
    if name not in FORMATS:
        raise ConfigError(f"format={name!r} is not known", hint=f"it is one of {', '.join(FORMATS)}", argument="format")
    if name == "torch":
        _torch()


def _torch() -> Any:
    try:
        import antifreeze.datasets.tensors as module
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ConfigError(
            'format="torch" needs PyTorch, which is not installed',
            hint='pip install "antifreeze[torch]", or pass format="numpy" or format="arrow"',
            argument="format",
        ) from error
    return module


def make_delivery(name: str, leaves: Sequence[Leaf], pad: object) -> Delivery:
    """Return what makes batches of the given format."""
    if name != "arrow":
        return _TorchDelivery(leaves, pad) if name == "torch" else _NumpyDelivery(leaves, pad)
    if pad is not None:
        hint = "take another format, or leave pad out"
        raise ConfigError('format="arrow" delivers lists as they are', hint=hint, argument="pad")
    return _ArrowDelivery()


# -- tracks ---------------------------------------------------------------------------------------------------------


def tracked_block(block: Any, leaf: int, rows: Int64Array) -> Any:
    """Return a block with the tracks of its rows, whose numbers in the source are given."""
    tracks = (leaf << _ROW_BITS) + rows.astype(np.int64)
    if isinstance(block, ArrowRows):
        return ArrowRows(block.table.append_column(_TRACKS, pa.array(tracks)))
    return Arrays({**block.columns, _TRACKS: tracks}, block.num_rows, block.nbytes + tracks.nbytes)


def leaf_and_row(tracks: Any, i: int) -> tuple[int, int]:
    """Return which leaf the i-th row of a batch is of, and its number in that leaf's source.

    Of rows side by side, those of the first dataset.
    """
    while isinstance(tracks, tuple):
        tracks = tracks[0]
    track = int(tracks[i])
    return track >> _ROW_BITS, track & (1 << _ROW_BITS) - 1
