"""What a loader needs of a dataset: rows of some lanes, in the order of an epoch, from any position on."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from antifreeze.datasets._delivery import Delivery
from antifreeze.datasets._reading import ReadOptions, RunShape
from antifreeze.datasets._row_code import RowCode
from antifreeze.decode import Block, Blocks
from antifreeze.plan import Lanes

INFINITE = 1 << 62
"""The number of rows of an epoch without an end: more than any run can deliver."""


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


class RowDataset(Protocol):
    """A dataset that loaders can read."""

    shuffle: bool
    seed: int
    drop_last: bool
    transform: Any
    force_override_state_dict: bool

    def __len__(self) -> int: ...

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        ...

    @property
    def row_source(self) -> RowSource:
        """Its rows. A new object may be made for each call: settings of the dataset can change at any time."""
        ...

    def row_code(self, first_leaf: int = 0) -> RowCode:
        """Return what user code does with the rows; ``first_leaf`` is the number of the first dataset in this one."""
        ...
