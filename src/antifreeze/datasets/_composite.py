"""What datasets that are made of other datasets share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antifreeze.core import ConfigError, step_seed
from antifreeze.datasets._reading import RunShape
from antifreeze.datasets._row_source import INFINITE, ReadRequest, RowDataset, RowSource
from antifreeze.datasets._user_code import UserCode


class CompositeRows:
    """What the row sources of such datasets share; see ``RowSource``. Made when it is asked for, and keeps nothing."""

    def __init__(self, datasets: Sequence[RowDataset]) -> None:
        self.parts: list[RowSource] = [dataset.row_source for dataset in datasets]

    @property
    def epoch(self) -> int:
        """The epoch that is read, the same for all parts."""
        return self.parts[0].epoch

    def in_epoch(self, epoch: int) -> None:
        for part in self.parts:
            part.in_epoch(epoch)

    def look(self, limit_s: float | None, memory_limit: int | None = None) -> None:
        """Find out how the rows of each part are read."""
        for part in self.parts:
            part.look(limit_s, memory_limit)

    def sizes(self, lanes: int, global_batch: int) -> list[int]:
        """Return how many rows each part has."""
        return [part.num_rows(lanes, global_batch) for part in self.parts]

    def num_fragments(self) -> int:
        """Return how many row groups the part with the fewest has."""
        return min(part.num_fragments() for part in self.parts)

    def facts(self) -> dict[str, Any]:
        facts = [part.facts() for part in self.parts]
        return {"rows": sum(f["rows"] for f in facts), "data": [f["data"] for f in facts]}

    def shapes(self, lanes: int, memory_limit: int | None) -> tuple[RunShape, ...]:
        """Return the shapes of a new run over all parts, which share the memory."""
        share = None if memory_limit is None else memory_limit // len(self.parts)
        return tuple(shape for part in self.parts for shape in part.shapes(lanes, share))

    def num_shapes(self) -> int:
        """Return how many shapes describe a run over all parts."""
        return sum(part.num_shapes() for part in self.parts)

    def readings(self, reading: ReadRequest) -> list[ReadRequest]:
        """Return what is read of each part."""
        found, first = [], 0
        for number, part in enumerate(self.parts):
            stop = first + part.num_shapes()
            seed = step_seed(seed=reading.seed, epoch=number, step=0)
            leaf = None if reading.first_leaf is None else reading.first_leaf + first
            found.append(reading._replace(shapes=reading.shapes[first:stop], seed=seed, first_leaf=leaf))
            first = stop
        return found


class CompositeDataset(RowDataset):
    """A dataset over other datasets. Each of them is read as if it were alone, with its own seed."""

    def __init__(self, datasets: Sequence[RowDataset], *, shuffle: bool | None, **settings: Any) -> None:
        self.datasets: tuple[RowDataset, ...] = _checked(datasets)
        super().__init__(shuffle=any(d.shuffle for d in self.datasets) if shuffle is None else shuffle, **settings)

    @property
    def format(self) -> str:
        return self.datasets[0].format

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.datasets))})"

    def _codes(self, first_leaf: int) -> tuple[list[UserCode], list[int]]:
        """Return what each dataset does with its rows, and the number of the first leaf in each."""
        leaves = [dataset.row_source.num_shapes() for dataset in self.datasets]
        firsts = [first_leaf + sum(leaves[:number]) for number in range(len(leaves))]
        return [dataset.row_code(first) for dataset, first in zip(self.datasets, firsts, strict=True)], firsts


def _checked(datasets: Any) -> tuple[RowDataset, ...]:
    found = tuple(datasets) if isinstance(datasets, Sequence) else ()
    for number, dataset in enumerate(found):
        if not isinstance(dataset, RowDataset):
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
    if any(dataset.row_source.num_rows(1, 1) >= INFINITE for dataset in found):
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
    if kind.__len__ is not base.__len__ and len(dataset) != (size := dataset.row_source.num_rows(1, 1)):
        raise ConfigError(
            f"{kind.__name__} overrides __len__ to give {len(dataset)}, but the dataset has {size} rows",
            hint="choose rows with dataset.subset(...) or subsample=; do not override __len__",
            argument="dataset",
        )
