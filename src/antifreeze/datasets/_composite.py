"""What datasets that are made of other datasets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from antifreeze.core import ConfigError, step_seed
from antifreeze.core import arguments as check
from antifreeze.datasets._cached import Made
from antifreeze.datasets._reading import RunShape
from antifreeze.datasets._row_code import RowCode
from antifreeze.datasets._row_source import INFINITE, ReadRequest, RowSource
from antifreeze.decode import Block, CombinedBlocks


class CompositeDataset:
    """A dataset over other datasets. Each of them is read as if it were alone, with its own seed."""

    transform: Any = None
    """A function of one row, or a list of such functions. A subclass may have a method of this name."""
    force_override_state_dict: bool

    def __init__(self, datasets: Sequence[RowSource], *, shuffle: bool | None, seed: int, drop_last: bool) -> None:
        self.datasets: tuple[RowSource, ...] = _checked(datasets)
        self.shuffle = any(d.shuffle for d in self.datasets) if shuffle is None else check.flag("shuffle", shuffle)
        self.seed = check.integer("seed", seed)
        self.drop_last = check.flag("drop_last", drop_last)
        self.epoch, self._made = 0, Made()

    @property
    def _continues(self) -> bool:
        return False

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that is read, or was read last, from 1 on. Workers know it too."""
        return self._made.epoch + 1

    @property
    def format(self) -> str:
        """``"torch"``, ``"numpy"`` or ``"arrow"``."""
        return self.datasets[0].format

    def _sizes(self, lanes: int, global_batch: int) -> list[int]:
        return [dataset._num_rows(lanes, global_batch) for dataset in self.datasets]

    def _in_epoch(self, epoch: int) -> None:
        self._made.epoch = epoch
        for dataset in self.datasets:
            dataset._in_epoch(epoch)

    def _codes(self, first_leaf: int) -> tuple[list[RowCode], list[int]]:
        """Return what each dataset does with its rows, and the number of the first leaf in each."""
        leaves = [dataset._num_shapes() for dataset in self.datasets]
        firsts = [first_leaf + sum(leaves[:number]) for number in range(len(leaves))]
        return [dataset._code(first) for dataset, first in zip(self.datasets, firsts, strict=True)], firsts

    def _look(self, limit_s: float | None, memory_limit: int | None = None) -> None:
        for dataset in self.datasets:
            dataset._look(limit_s, memory_limit)

    def _num_fragments(self) -> int:
        return min(dataset._num_fragments() for dataset in self.datasets)

    def _facts(self) -> dict[str, Any]:
        facts = [dataset._facts() for dataset in self.datasets]
        return {"rows": sum(f["rows"] for f in facts), "data": [f["data"] for f in facts]}

    def _shapes(self, lanes: int, memory_limit: int | None) -> tuple[RunShape, ...]:
        share = None if memory_limit is None else memory_limit // len(self.datasets)
        return tuple(shape for dataset in self.datasets for shape in dataset._shapes(lanes, share))

    def _num_shapes(self) -> int:
        return sum(dataset._num_shapes() for dataset in self.datasets)

    def _readings(self, reading: ReadRequest) -> list[ReadRequest]:
        """Return what is read of each dataset."""
        found, first = [], 0
        for number, dataset in enumerate(self.datasets):
            stop = first + dataset._num_shapes()
            seed = step_seed(seed=reading.seed, epoch=number, step=0)
            leaf = None if reading.first_leaf is None else reading.first_leaf + first
            found.append(reading._replace(shapes=reading.shapes[first:stop], seed=seed, first_leaf=leaf))
            first = stop
        return found


def _checked(datasets: Any) -> tuple[RowSource, ...]:
    found = tuple(datasets) if isinstance(datasets, Sequence) else ()
    for number, dataset in enumerate(found):
        if not hasattr(dataset, "_num_shapes"):
            raise ConfigError(
                f"dataset {number} is a {type(dataset).__name__}; only datasets of antifreeze can be put together",
                hint="wrap files in antifreeze.StreamingDataset(path)",
                argument="datasets",
            )
        check_overrides(dataset)
    if not found:
        raise ConfigError(
            f"datasets={datasets!r:.200} is not a list of datasets", hint="give at least one", argument="datasets"
        )
    if len({dataset.format for dataset in found}) > 1:
        formats = ", ".join(dataset.format for dataset in found)
        hint = "give all datasets the same format="
        raise ConfigError(f"the datasets have different formats: {formats}", hint=hint, argument="datasets")
    if any(getattr(dataset, "batching_method", None) == "per_stream" for dataset in found):
        hint = 'give batching_method="per_stream" to the outermost dataset'
        raise ConfigError(
            "batches per stream are made for a loader, not a part of another", hint=hint, argument="datasets"
        )
    if any(dataset._num_rows(1, 1) >= INFINITE for dataset in found):
        hint = "give a number as its length"
        raise ConfigError("a dataset without an end cannot be a part of another", hint=hint, argument="datasets")
    return found


def check_overrides(dataset: Any) -> None:
    """Raise ConfigError if a subclass changes how a dataset is iterated over: a loader plans that itself."""
    for part in getattr(dataset, "datasets", ()):
        check_overrides(part)
    kind: Any = type(dataset)
    base: Any = next(k for k in kind.__mro__ if k.__module__.startswith("antifreeze."))
    for method in ("__iter__", "__next__"):
        if getattr(kind, method, None) is not getattr(base, method, None):
            raise ConfigError(
                f"{kind.__name__} overrides {method}, which is not called: loaders read rows by a plan",
                hint="override transform or __getitem__; to drop or pack rows, iterate over the dataset in a torch "
                "IterableDataset, and give that to antifreeze.DataLoader",
                argument="dataset",
            )
    if kind.__len__ is not base.__len__ and len(dataset) != (size := dataset._num_rows(1, 1)):
        raise ConfigError(
            f"{kind.__name__} overrides __len__ to give {len(dataset)}, but the dataset has {size} rows",
            hint="choose rows with dataset.subset(...) or subsample=; do not override __len__",
            argument="dataset",
        )


def rows_of(makers: Sequence[Callable[[], Block]]) -> CombinedBlocks:
    """Return blocks of one row each, which are made when they are asked for."""
    return CombinedBlocks([], (make() for make in makers))
