"""Several datasets side by side: a row of each at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from antifreeze.api import _arguments as check
from antifreeze.api._delivery import Batch, Delivery
from antifreeze.api._iterate import rows_of_epoch
from antifreeze.api._parts import Parts
from antifreeze.api._readable import Readable, Reading
from antifreeze.core import ConfigError, step_seed
from antifreeze.loader import Means, Pairs, one_after_the_other, side_by_side
from antifreeze.plan import Lanes
from antifreeze.workers import Block, Blocks


class ParallelStreamingDataset(Parts):
    """Rows of several datasets side by side, as ``zip`` does it. A row is a tuple of a row of each, and so is a batch.

    Args:
        datasets: datasets with any columns.
        length: how many rows an epoch has: a number, ``"shortest"`` (the default) or ``"longest"``. A dataset that ends
            before that begins again, shuffled anew.
        shuffle: whether the rows of each dataset are shuffled; by default if one of them is to be.
        seed: what the order depends on, together with the epoch.
        transform: a function of one row, which is a tuple, or of a whole batch if marked with ``antifreeze.batched``.
        drop_last: whether a loader that does not say otherwise leaves out a last batch that is not full.
    """

    def __init__(
        self,
        datasets: Sequence[Readable],
        length: int | str | None = None,
        *,
        shuffle: bool | None = None,
        seed: int = 42,
        transform: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(datasets, shuffle=shuffle, seed=seed, drop_last=drop_last)
        check.function("transform", transform)
        self.transform = transform
        if length not in (None, "shortest", "longest") and (isinstance(length, str) or length is None):
            hint = 'it is a number, "shortest" or "longest"'
            raise ConfigError(f"length={length!r} is not known", hint=hint, argument="length")
        self.length = length if length is None or isinstance(length, str) else check.integer("length", length, 0)
        for number, dataset in enumerate(self.datasets):
            if dataset.transform is not None:
                raise ConfigError(
                    f"dataset {number} has a transform of its own",
                    hint="give one to ParallelStreamingDataset(..., transform=...); it is called with a tuple of rows",
                    argument="transform",
                )
        if not min(map(len, self.datasets)) and self._num_rows(1, 1):
            raise ConfigError("a dataset without rows cannot begin again", hint="leave it out", argument="datasets")

    # -- what the loader needs -------------------------------------------------------------------------------------

    @property
    def _delivery(self) -> Delivery:
        return _TupleDelivery(tuple(dataset._delivery for dataset in self.datasets))

    def _columns_of(self) -> dict[str, str]:
        columns = [dataset._columns_of() for dataset in self.datasets]
        return {f"{number}.{name}": kind for number, of in enumerate(columns) for name, kind in of.items()}

    def __len__(self) -> int:
        return self._num_rows(1, 1)

    def _num_rows(self, lanes: int, global_batch: int) -> int:
        sizes = self._sizes(lanes, global_batch)
        if isinstance(self.length, int):
            return self.length
        return max(sizes) if self.length == "longest" else min(sizes)

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts()
        return {"rows": len(self), "data": "+".join(facts["data"])}

    def _part(self, reading: Reading, number: int, cycle: int) -> Reading:
        """Return what is read of one dataset when it is read for the so-many-th time in an epoch.

        Its samples have other numbers then, and so belong to other lanes.
        """
        size = self.datasets[number]._num_rows(reading.lanes.total, reading.global_batch)
        part, lanes = self._readings(reading)[number], reading.lanes
        seed = part.seed if not cycle else step_seed(seed=part.seed, epoch=cycle, step=1)
        first = (lanes.first - cycle * size) % lanes.step
        return part._replace(lanes=Lanes(lanes.total, first, lanes.step), seed=seed)

    def _blocks(self, reading: Reading, position: int, means: Means) -> Blocks:
        first = reading.lanes.sample(position)
        stop = self._num_rows(reading.lanes.total, reading.global_batch)
        shared = means.shared(len(self.datasets))
        return side_by_side(
            [one_after_the_other(self._cycles(reading, n, first, stop, shared)) for n in range(len(self.datasets))]
        )

    def _cycles(
        self, reading: Reading, number: int, first: int, stop: int, means: Means
    ) -> Iterator[Callable[[], Blocks]]:
        dataset = self.datasets[number]
        size = dataset._num_rows(reading.lanes.total, reading.global_batch)
        while first < stop:
            cycle, sample = divmod(first, size)
            part = self._part(reading, number, cycle)
            yield partial(dataset._blocks, part, part.lanes.position(sample), means)
            first = (cycle + 1) * size

    def _in_part(self, reading: Reading, number: int, sample: int) -> tuple[Reading, int]:
        size = self.datasets[number]._num_rows(reading.lanes.total, reading.global_batch)
        cycle, row = divmod(sample, size)
        return self._part(reading, number, cycle), row

    def _sample(self, reading: Reading, sample: int) -> Block:
        return Pairs(
            tuple(dataset._sample(*self._in_part(reading, n, sample)) for n, dataset in enumerate(self.datasets))
        )

    def _sample_name(self, reading: Reading, sample: int) -> str:
        names = [d._sample_name(*self._in_part(reading, n, sample)) for n, d in enumerate(self.datasets)]
        return " with ".join(names)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows one by one, in this thread; each full iteration is a new epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        yield from rows_of_epoch(self, epoch)

    def __repr__(self) -> str:
        return f"ParallelStreamingDataset({', '.join(map(repr, self.datasets))})"


class _TupleDelivery:
    """Tuples of what the datasets deliver."""

    def __init__(self, parts: tuple[Delivery, ...]) -> None:
        self._parts = parts

    def batch(self, block: Pairs, start: int, stop: int) -> Batch:
        return tuple(part.batch(b, start, stop) for part, b in zip(self._parts, block.parts, strict=True))

    def row(self, batch: Batch, i: int) -> Any:
        return tuple(part.row(b, i) for part, b in zip(self._parts, batch, strict=True))

    def collate(self, rows: Sequence[Any]) -> Batch:
        if rows and isinstance(rows[0], tuple) and len(rows[0]) == len(self._parts):
            return tuple(part.collate(of) for part, of in zip(self._parts, zip(*rows, strict=True), strict=True))
        return self._parts[0].collate(rows)  # a transform has made one of them

    def pin(self, batch: Batch) -> Batch:
        return self._parts[0].pin(batch)

    def sendable(self, block: Pairs, start: int, stop: int) -> Any:
        return tuple(part.sendable(b, start, stop) for part, b in zip(self._parts, block.parts, strict=True))

    def received(self, value: Any) -> Batch:
        return tuple(part.received(v) for part, v in zip(self._parts, value, strict=True))
