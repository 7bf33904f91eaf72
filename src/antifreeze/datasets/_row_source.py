"""What a loader needs of a dataset: rows of some lanes, in the order of an epoch, from any position on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

from antifreeze.core import arguments as check
from antifreeze.datasets._delivery import Delivery
from antifreeze.datasets._reading import ReadOptions, RunShape, parse_limit
from antifreeze.datasets._transforms import Moment, make_transform
from antifreeze.datasets._user_code import UserCode, error_of, inline_context, row_batch, row_location
from antifreeze.decode import Block, Blocks, Rebatcher
from antifreeze.plan import Lanes

INFINITE = 1 << 62
"""The number of rows of an epoch without an end: more than any run can deliver."""
_ROWS_AT_A_TIME = 256


class ReadRequest(NamedTuple):
    """Which rows, in which order."""

    lanes: Lanes
    shapes: tuple[RunShape, ...]
    shuffle: bool
    seed: int
    epoch: int
    global_batch: int
    """How many samples a step takes over all ranks: what weights that change with the step depend on."""
    first_leaf: int | None = None
    """The number of the first dataset in this one, if rows are to know which row of which dataset they are."""


class RowSource(Protocol):
    """The rows of a dataset, as loaders read them. What user code does with them is the dataset's (``RowDataset``)."""

    @property
    def delivery(self) -> Delivery:
        """How rows become batches."""
        ...

    @property
    def continues(self) -> bool:
        """Whether an epoch that is left early is continued by the next iteration."""
        ...

    @property
    def epoch(self) -> int:
        """The epoch that is read; ``current_epoch`` of the dataset gives it to user code."""
        ...

    def in_epoch(self, epoch: int) -> None:
        """Note the epoch of the rows that are read next."""
        ...

    def look(self, limit_s: float | None, memory_limit: int | None = None) -> None:
        """Find out how rows are read, within a limit on how long nothing may move; None if no thread can watch."""
        ...

    def column_types(self) -> dict[str, str]:
        """Return the columns and their types, as text."""
        ...

    def num_rows(self, lanes: int, global_batch: int) -> int:
        """Return how many samples an epoch has."""
        ...

    def num_shapes(self) -> int:
        """Return how many shapes describe a run over these rows."""
        ...

    def num_fragments(self) -> int:
        """Return how many row groups there are."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what tells these rows from others, for a state."""
        ...

    def shapes(self, lanes: int, memory_limit: int | None) -> tuple[RunShape, ...]:
        """Return the shape of a new run."""
        ...

    def blocks(self, reading: ReadRequest, position: int, options: ReadOptions) -> Blocks:
        """Start reading, from a position of the lanes on."""
        ...

    def sample_name(self, reading: ReadRequest, sample: int) -> str:
        """Return the location of a row, by its number in the epoch, as text."""
        ...

    def sample(self, reading: ReadRequest, sample: int) -> Block:
        """Return one row by its number in the epoch, of whatever lane."""
        ...


class RowDataset:
    """A dataset that loaders can read."""

    transform: Any = None
    """Function of one row, or a list of such functions. A subclass may define a method of this name."""

    def __init__(
        self, *, shuffle: bool, seed: int, drop_last: bool, force_override_state_dict: bool, transform: Any
    ) -> None:
        self.shuffle = check.flag("shuffle", shuffle)
        self.seed = check.integer("seed", seed)
        self.drop_last = check.flag("drop_last", drop_last)
        self.force_override_state_dict = check.flag("force_override_state_dict", force_override_state_dict)
        if transform is not None:  # else it is that of the class, if a subclass has one
            make_transform(transform)
            self.transform = transform
        self.epoch = 0

    @property
    def row_source(self) -> RowSource:
        """The rows, as loaders read them; not for users.

        A new object may be made for each call: settings of the dataset can change at any time.
        """
        raise NotImplementedError

    def row_code(self, first_leaf: int = 0) -> UserCode:
        """Return what user code does with the rows; for loaders. Raises ConfigError.

        ``first_leaf`` is the number of the first dataset in this one.
        """
        raise NotImplementedError

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        raise NotImplementedError

    @property
    def current_epoch(self) -> int:
        """Number of the epoch that is being read, or was read last, counted from 1. Workers know it too."""
        return self.row_source.epoch + 1

    def __len__(self) -> int:
        return self.row_source.num_rows(1, 1)

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows one by one, in this thread; each iteration of a shuffled dataset is a new epoch."""
        return self._rows_of_epoch(self.row_source)

    def _rows_of_epoch(self, source: RowSource) -> Iterator[Any]:
        """Yield the rows of the next epoch, each through the transform."""
        from antifreeze.worker import UserError, seeded

        epoch, self.epoch = self.epoch, self.epoch + 1
        code, delivery, context, first = self.row_code(), source.delivery, inline_context(), 0
        leaf = 0 if code.makes_rows else None
        reading = ReadRequest(Lanes(), source.shapes(1, None), self.shuffle, self.seed, epoch, 1, leaf)
        source.in_epoch(epoch)
        blocks = source.blocks(reading, 0, ReadOptions(memory_limit=parse_limit(None)))
        with contextlib.closing(blocks):
            for step, (block, start, stop) in enumerate(Rebatcher(iter(blocks), _ROWS_AT_A_TIME)):
                given = row_batch(delivery, block, start, stop, Moment(self.seed, epoch, first))
                try:
                    with seeded(self.seed, epoch, step):
                        rows = code.rows(given, context)
                except UserError as caught:
                    place = row_location(partial(source.sample_name, reading), first, step, caught.position)
                    raise error_of(caught, place, step) from caught.error
                yield from rows
                first += stop - start
