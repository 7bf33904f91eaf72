"""In which form rows reach the user: torch tensors, NumPy arrays or Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from antifreeze.core import ConfigError
from antifreeze.datasets._to_batch import Finish, collate, finisher, row_of
from antifreeze.datasets._tracks import TRACKS
from antifreeze.decode import Arrays, ArrowRows
from antifreeze.formats import Leaf

FORMATS = ("torch", "numpy", "arrow")

Batch = Any
Row = dict[str, Any]


class Delivery(Protocol):
    """Makes what the user sees."""

    def batch(self, block: Any, start: int, stop: int) -> Batch:
        """Return some rows of a block as a batch."""
        ...

    def row(self, batch: Batch, i: int) -> Row:
        """Return one row: for each column what ``batch[column][i]`` gives."""
        ...

    def parted(self, batch: Batch) -> Batch:
        """Return the batch in a form of which ``row`` is cheap to take, one after the other."""
        ...

    def collate(self, rows: Sequence[Any]) -> Batch:
        """Return rows, after a transform, as a batch."""
        ...

    def pin(self, batch: Batch) -> Batch:
        """Return the batch in page-locked memory, where that means something."""
        ...

    def sendable(self, block: Any, start: int, stop: int) -> Any:
        """Return some rows of a block in a form that can be sent to a worker."""
        ...

    def received(self, value: Any) -> Batch:
        """Return what was sent as a batch."""
        ...

    @property
    def parts(self) -> tuple[Delivery, ...]:
        """Those of the datasets side by side, if a batch is a tuple."""
        ...

    def tracked(self) -> Delivery:
        """Return one whose batches are ``Tracked``, for blocks that are read with tracks."""
        ...


class Tracked:
    """A batch that knows which row of which dataset each of its rows is."""

    __slots__ = ("batch", "tracks")

    def __init__(self, batch: Batch, tracks: Any) -> None:
        self.batch, self.tracks = batch, tracks


class _TrackedDelivery:
    """What another one delivers, with tracks. Rows and what is made of them are the other's."""

    parts: tuple[Delivery, ...] = ()

    def __init__(self, plain: _ArrayDelivery | _ArrowDelivery) -> None:
        self._plain = plain
        self.collate, self.pin, self.sendable = plain.collate, plain.pin, plain.sendable

    def __reduce__(self) -> tuple[Any, ...]:
        return _TrackedDelivery, (self._plain,)

    def batch(self, block: Any, start: int, stop: int) -> Tracked:
        return self._plain.split(self._plain.batch(block, start, stop), block, start, stop)

    def row(self, batch: Tracked, i: int) -> Row:
        return self._plain.row(batch.batch, i)

    def parted(self, batch: Tracked) -> Tracked:
        return Tracked(self._plain.parted(batch.batch), batch.tracks)

    def received(self, value: Any) -> Tracked:
        return self._plain.split(self._plain.received(value), value, 0, None)

    def tracked(self) -> Delivery:
        return self


class _ArrayDelivery:
    parts: tuple[Delivery, ...] = ()

    def __init__(
        self,
        finish: Finish,
        row: Callable[[Batch, int], Row],
        parted: Callable[[Batch], Batch],
        collate: Callable[[Sequence[Any]], Batch],
        pin: Callable[[Batch], Batch],
    ) -> None:
        self._finish, self.row, self.parted, self.collate, self.pin = finish, row, parted, collate, pin
        self.made_of: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return make_delivery, self.made_of

    def batch(self, block: Arrays, start: int, stop: int) -> Batch:
        return self._finish(block.columns, start, stop)

    def sendable(self, block: Arrays, start: int, stop: int) -> Any:
        return {name: column[start:stop] for name, column in block.columns.items()}

    def received(self, value: Any) -> Batch:
        return self._finish(value)

    def split(self, batch: Batch, made_of: Any, start: int, stop: int | None) -> Tracked:
        """Return a batch and the tracks of its rows, from the block or the value that it was made of."""
        columns = made_of.columns if isinstance(made_of, Arrays) else made_of
        return Tracked(batch, columns[TRACKS][start:stop])

    def tracked(self) -> Delivery:
        return _TrackedDelivery(self)


class _ArrowDelivery:
    parts: tuple[Delivery, ...] = ()

    def batch(self, block: ArrowRows, start: int, stop: int) -> Batch:
        return block.table.slice(start, stop - start).combine_chunks().to_batches()[0]

    def row(self, batch: Batch, i: int) -> Row:
        return {name: batch.column(name)[i] for name in batch.schema.names}

    def parted(self, batch: Batch) -> Batch:
        return batch

    def collate(self, rows: Sequence[Any]) -> Batch:
        return list(rows)

    def pin(self, batch: Batch) -> Batch:
        return batch

    def sendable(self, block: ArrowRows, start: int, stop: int) -> Any:
        # A pickled slice would bring all of the table that it is a slice of.
        sink = pa.BufferOutputStream()
        batch = self.batch(block, start, stop)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()

    def received(self, value: Any) -> Batch:
        return pa.ipc.open_stream(value).read_next_batch()

    def split(self, batch: Batch, made_of: Any, start: int, stop: int | None) -> Tracked:  # noqa: ARG002
        """Return a batch and the tracks of its rows, which it has as a column."""
        return Tracked(batch.drop_columns([TRACKS]), batch.column(TRACKS).to_numpy())

    def tracked(self) -> Delivery:
        return _TrackedDelivery(self)


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
    if name == "arrow":
        if pad is not None:
            hint = "take another format, or leave pad out"
            raise ConfigError('format="arrow" delivers lists as they are', hint=hint, argument="pad")
        return _ArrowDelivery()
    if name == "numpy":
        finish = finisher(leaves, pad)
        made = _ArrayDelivery(finish, row_of, lambda batch: batch, collate, lambda batch: batch)
    else:
        torch = _torch()
        made = _ArrayDelivery(torch.finisher(leaves, pad), row_of, torch.parted, torch.collate, torch.pin)
    made.made_of = (name, leaves, pad)
    return made
