"""Several datasets side by side: a row of each at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.datasets._composite import CompositeDataset, CompositeRows
from antifreeze.datasets._delivery import Batch, Delivery
from antifreeze.datasets._reading import ReadOptions
from antifreeze.datasets._row_source import INFINITE, ReadRequest, RowDataset
from antifreeze.datasets._transforms import Transform, make_transform
from antifreeze.datasets._user_code import UserCode, paired_code
from antifreeze.decode import Block, Blocks, Pairs, StridedBlocks, one_after_the_other, side_by_side
from antifreeze.plan import Lanes


class ParallelStreamingDataset(CompositeDataset):
    """Rows of several datasets side by side, as with ``zip``: a row is a tuple with a row of each, and so is a batch.

    Args:
        datasets: Datasets with any columns.
        length: Number of rows in an epoch, over all ranks. ``"shortest"`` (the default) ends with the shortest dataset.
            With a number, ``"longest"`` or ``float("inf")``, an exhausted dataset restarts, in another order if
            shuffled.
        force_override_state_dict: True if a loader resumes from a state that does not match, with a warning, as
            ``load_state_dict(state, strict=False)`` does.
        transform: Function of one row, which is a tuple, or of a whole batch if marked with ``antifreeze.batched``. If
            it takes a second argument, it gets a mapping of generators, ``"random"``, ``"numpy"`` and ``"torch"``,
            which are seeded for the batch. A list of functions is applied in turn.
        seed: Determines the order, together with the epoch.
        resume: With a length, True if an epoch starts where the previous one stopped, even if that one was left early;
            False if every epoch has the same rows in the same order.
        reset_rngs: True to seed these generators alike in every epoch.
        shuffle: True to shuffle the rows of each dataset; by default if one of them shuffles.
        drop_last: True if a loader without a ``drop_last`` argument drops an incomplete last batch.

    Raises:
        ConfigError: If an argument has a wrong value.

    Example:
        ```python
        import antifreeze as af

        inputs = af.StreamingDataset("data/train", columns=["ids"])
        targets = af.StreamingDataset("data/train", columns=["labels"])
        for x, y in af.StreamingDataLoader(af.ParallelStreamingDataset([inputs, targets]), batch_size=32):
            print(x["ids"].shape, y["labels"].shape)
        ```
    """

    @check.explained("ParallelStreamingDataset")
    def __init__(
        self,
        datasets: Sequence[RowDataset],
        length: float | str | None = None,
        force_override_state_dict: bool = False,
        transform: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        seed: int = 42,
        resume: bool = True,
        reset_rngs: bool = False,
        *,
        shuffle: bool | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            datasets,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            force_override_state_dict=force_override_state_dict,
            transform=transform,
        )
        self.reset_rngs = check.flag("reset_rngs", reset_rngs)
        self.length, self.resume = _checked_length(length), check.flag("resume", resume)
        rows = self.row_source
        if not min(rows.sizes(1, 1)) and rows.num_rows(1, 1):
            raise ConfigError("a dataset without rows cannot start over", hint="leave it out", argument="datasets")
        self.row_code()  # raises now what is wrong with transforms

    @property
    def row_source(self) -> ParallelRows:
        return ParallelRows(self.datasets, self.length, is_resumed=self.resume)

    def row_code(self, first_leaf: int = 0) -> UserCode:
        codes, _ = self._codes(first_leaf)
        transform = make_transform(self.transform, self)
        if transform is not None:
            takes = _takes_generators(transform)
            transform = replace(transform, takes_generators=takes, same_in_every_epoch=self.reset_rngs)
        return paired_code(codes).then(transform, "ParallelStreamingDataset")

    def __len__(self) -> int:
        num_rows = self.row_source.num_rows(1, 1)
        if num_rows == INFINITE:
            raise TypeError('a ParallelStreamingDataset with length=float("inf") has no len()')
        return num_rows

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows of an epoch one by one, in this thread.

        Each iteration starts with the first rows: ``resume`` is for loaders.
        """
        return self._rows_of_epoch(ParallelRows(self.datasets, self.length, is_resumed=self.resume, starts_over=True))


class ParallelRows(CompositeRows):
    """The ``RowSource`` of datasets side by side."""

    def __init__(
        self, datasets: Sequence[RowDataset], length: int | str | None, *, is_resumed: bool, starts_over: bool = False
    ) -> None:
        super().__init__(datasets)
        self._length, self._is_resumed = length, is_resumed
        self._starts_over = starts_over
        """Whether these are for one iteration without a loader, which does not continue another one."""

    @property
    def delivery(self) -> Delivery:
        """How rows become batches: tuples of those of the parts."""
        return _TupleDelivery(tuple(part.delivery for part in self.parts))

    def column_types(self) -> dict[str, str]:
        """Return the columns of each part, with its number, and their types."""
        columns = [part.column_types() for part in self.parts]
        return {f"{number}.{name}": kind for number, of in enumerate(columns) for name, kind in of.items()}

    def num_rows(self, lanes: int, global_batch: int) -> int:
        if isinstance(self._length, int):
            return self._length
        sizes = self.sizes(lanes, global_batch)
        return max(sizes) if self._length == "longest" else min(sizes)

    @property
    def _cycles_on(self) -> bool:
        """Whether a part that ends starts over within an epoch."""
        return self._length not in (None, "shortest")

    @property
    def continues(self) -> bool:
        return self._cycles_on and self._is_resumed

    def facts(self) -> dict[str, Any]:
        data, rows = "+".join(super().facts()["data"]), self.num_rows(1, 1)
        if self._cycles_on:
            data += " resumed" if self._is_resumed else " repeated"
        return {"rows": rows if rows < INFINITE else "infinite", "data": data}

    def _first_row(self, reading: ReadRequest) -> int:
        """Return how many rows each dataset has delivered in the epochs before this one, if it continues from there.

        An epoch without an end has no epochs before it.
        """
        num_rows = self.num_rows(reading.lanes.total, reading.global_batch)
        return reading.epoch * num_rows if self.continues and num_rows < INFINITE and not self._starts_over else 0

    def _part(self, reading: ReadRequest, number: int, cycle: int) -> ReadRequest:
        """Return what is read of one dataset when it is read for the so-many-th time.

        Its samples have other numbers then, and so belong to other lanes. A dataset that starts over has the order of
        its next epoch, whatever the epoch of the whole is: so no order depends on where epochs end.
        """
        size = self.parts[number].num_rows(reading.lanes.total, reading.global_batch)
        part, lanes = self.readings(reading)[number], reading.lanes
        first = (lanes.first + self._first_row(reading) - cycle * size) % lanes.step
        epoch = cycle if self._cycles_on else reading.epoch
        if self._cycles_on and self._starts_over and self._is_resumed:
            epoch += reading.epoch * (self.num_rows(lanes.total, reading.global_batch) % INFINITE // size + 1)
        return part._replace(lanes=Lanes(lanes.total, first, lanes.step), epoch=epoch)

    def blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        lanes, before = reading.lanes, self._first_row(reading)
        stop, shared = self.num_rows(lanes.total, reading.global_batch), options.shared(len(self.parts))
        first = before + lanes.sample(position)
        rows = side_by_side(
            [
                one_after_the_other(self._cycles(reading, n, first, before + stop, shared))
                for n in range(len(self.parts))
            ]
        )
        # A dataset is read to its end even where the epoch ends before it.
        return StridedBlocks(rows, limit=max(0, lanes.position(stop) - position))

    def _cycles(
        self, reading: ReadRequest, number: int, first: int, stop: int, options: ReadOptions
    ) -> Iterator[Callable[[], Blocks]]:
        part = self.parts[number]
        size = part.num_rows(reading.lanes.total, reading.global_batch)
        while first < stop:
            cycle, sample = divmod(first, size)
            of_part = self._part(reading, number, cycle)
            yield partial(part.blocks, of_part, of_part.lanes.position(sample), options)
            first = (cycle + 1) * size

    def _in_part(self, reading: ReadRequest, number: int, sample: int) -> tuple[ReadRequest, int]:
        size = self.parts[number].num_rows(reading.lanes.total, reading.global_batch)
        cycle, row = divmod(self._first_row(reading) + sample, size)
        return self._part(reading, number, cycle), row

    def sample(self, reading: ReadRequest, sample: int) -> Block:
        return Pairs(tuple(part.sample(*self._in_part(reading, n, sample)) for n, part in enumerate(self.parts)))

    def sample_name(self, reading: ReadRequest, sample: int) -> str:
        names = [part.sample_name(*self._in_part(reading, n, sample)) for n, part in enumerate(self.parts)]
        return " with ".join(names)


class _TupleDelivery(Delivery):
    """Tuples of what the datasets deliver."""

    def __init__(self, parts: tuple[Delivery, ...]) -> None:
        self.parts = parts

    def batch(self, block: Pairs, start: int, stop: int) -> Batch:
        return tuple(part.batch(b, start, stop) for part, b in zip(self.parts, block.parts, strict=True))

    def row(self, batch: Batch, i: int) -> Any:
        return tuple(part.row(b, i) for part, b in zip(self.parts, batch, strict=True))

    def collate(self, rows: Sequence[Any]) -> Batch:
        if rows and isinstance(rows[0], tuple) and len(rows[0]) == len(self.parts):
            return tuple(part.collate(of) for part, of in zip(self.parts, zip(*rows, strict=True), strict=True))
        return self.parts[0].collate(rows)  # a transform has made one of them

    def pin(self, batch: Batch) -> Batch:
        return self.parts[0].pin(batch)

    def tracks(self, block: Pairs, start: int, stop: int) -> Any:
        return tuple(part.tracks(b, start, stop) for part, b in zip(self.parts, block.parts, strict=True))

    def parted(self, batch: Batch) -> Batch:
        return tuple(part.parted(b) for part, b in zip(self.parts, batch, strict=True))

    def sendable(self, block: Pairs, start: int, stop: int) -> Any:
        return tuple(part.sendable(b, start, stop) for part, b in zip(self.parts, block.parts, strict=True))

    def received(self, value: Any) -> Pairs:
        return Pairs(tuple(part.received(v) for part, v in zip(self.parts, value, strict=True)))


def _takes_generators(transform: Transform) -> bool:
    """Whether a transform has a second argument, which is required or can take them."""
    if len(transform.functions) > 1:
        return False
    try:
        parameters = inspect.signature(transform.functions[0]).parameters.values()
    except (TypeError, ValueError):  # a function of C, say
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    number = sum(parameter.kind in kinds for parameter in parameters)
    if number > 2:
        raise ConfigError(
            f"transform takes {number} arguments: expected 1, the row, or 2, the row and the generators",
            hint="fix the others with functools.partial",
            argument="transform",
        )
    return number == 2


def _checked_length(length: Any) -> int | str | None:
    if length is None or length in ("shortest", "longest"):
        found: int | str | None = length
        return found
    if isinstance(length, float) and length == float("inf"):
        return INFINITE
    if isinstance(length, str):
        hint = 'it is a number, "shortest", "longest" or float("inf")'
        raise ConfigError(f"length={length!r} is not known", hint=hint, argument="length")
    return check.integer("length", length, 0)
