"""Parts of a dataset by chance: for testing, or because all of it is too much."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from antifreeze.core import ConfigError
from antifreeze.core import arguments as check
from antifreeze.datasets._dataset import StreamingDataset
from antifreeze.plan import RandomStream, permutation, some_rows

Dataset = TypeVar("Dataset", bound=StreamingDataset)


@check.explained("train_test_split", renamed={"streaming_dataset": "dataset"})
def train_test_split(dataset: Dataset, splits: Sequence[float], seed: int = 42, shuffle: bool = True) -> list[Dataset]:
    """Split a dataset into datasets that share no row.

    Args:
        dataset: The dataset to split.
        splits: One fraction for each part, such as ``[0.9, 0.1]``; together at most 1.
        seed: Determines the random choice.
        shuffle: True to choose rows at random, which takes 8 bytes of memory for each row; False to give the first rows
            to the first part.

    Returns:
        One dataset for each fraction, of the same class.

    Raises:
        ConfigError: If ``dataset`` is not a ``StreamingDataset``, or ``splits`` are not such fractions.

    Example:
        ```python
        import antifreeze as af

        train, valid = af.train_test_split(af.StreamingDataset("data/train"), splits=[0.9, 0.1])
        ```
    """
    _check_dataset(dataset)
    fractions = _fractions(splits)
    ends = np.floor(np.cumsum([0.0, *fractions]) * len(dataset) + 1e-6).astype(int).tolist()
    if abs(sum(fractions) - 1) < 1e-9:
        ends[-1] = len(dataset)
    bounds = list(itertools.pairwise(ends))
    if not check.flag("shuffle", shuffle):
        return [dataset.subset(range(start, stop)) for start, stop in bounds]
    order = permutation(len(dataset), seed=check.integer("seed", seed), epoch=0, use=RandomStream.SPLIT)
    # In the order of the files, so that they are read from front to back; a loader can still shuffle them.
    return [dataset.subset(np.sort(order[start:stop])) for start, stop in bounds]


@check.explained("subsample")
def subsample(dataset: Dataset, amount: float, seed: int = 42) -> Dataset:
    """Return a dataset with some of the rows, chosen at random.

    Args:
        dataset: The dataset to choose from.
        amount: Fraction of the rows, such as 0.1; above 1, rows are repeated: 2.5 selects each row twice, and half of
            them once more.
        seed: Determines the random choice.

    Returns:
        A dataset of the same class.

    Raises:
        ConfigError: If ``dataset`` is not a ``StreamingDataset``, or ``amount`` is not a number >= 0.

    Example:
        ```python
        import antifreeze as af

        tenth = af.subsample(af.StreamingDataset("data/train"), 0.1)
        ```
    """
    _check_dataset(dataset)
    rows = some_rows(len(dataset), check.amount("amount", amount), check.integer("seed", seed))
    return dataset if rows is None else dataset.subset(rows)


def _check_dataset(dataset: object) -> None:
    if not isinstance(dataset, StreamingDataset):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__}: expected a StreamingDataset",
            hint="take parts of each dataset before you put them together",
            argument="dataset",
        )


def _fractions(splits: object) -> list[float]:
    try:
        found = [float(s) for s in splits]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 <= fraction <= 1 for fraction in found) or sum(found) > 1 + 1e-9:
        raise ConfigError(
            f"splits={splits!r:.200} are not fractions that add up to 1 at most",
            hint="such as splits=[0.9, 0.1]",
            argument="splits",
        )
    return found
