"""``DataLoader`` gives what torch's gives: the same samples, in the same order, for every argument."""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import WORKERS, InBulk, Items, Made, Pinnable, Sized, Streamed, check, numbers, ours, seeded

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")


class Words(dict[str, Any]):
    """Is asked by name."""


def words() -> dict[str, Any]:
    names = [f"file {i}" for i in range(7)]
    return {"dataset": Words((name, len(name) + i) for i, name in enumerate(names)), "sampler": names[::-1]}


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "defaults": lambda: {"dataset": numbers()},
    "batches of 3": lambda: {"dataset": numbers(), "batch_size": 3},
    "drop_last": lambda: {"dataset": numbers(), "batch_size": 3, "drop_last": True},
    "more than there is": lambda: {"dataset": numbers(), "batch_size": 50},
    "more than there is, drop_last": lambda: {"dataset": numbers(), "batch_size": 50, "drop_last": True},
    "no batches": lambda: {"dataset": numbers(), "batch_size": None},
    "no samples": lambda: {"dataset": Items([]), "batch_size": 3},
    "shuffle": lambda: {"dataset": numbers(), "batch_size": 3, "shuffle": True, "generator": seeded()},
    "shuffle, no batches": lambda: {
        "dataset": numbers(),
        "batch_size": None,
        "shuffle": True,
        "generator": seeded(),
    },
    "generator alone": lambda: {"dataset": numbers(), "generator": seeded()},
    "sampler": lambda: {"dataset": numbers(), "batch_size": 3, "sampler": [5, 3, 3, 19, 0]},
    "sampler of tensors": lambda: {"dataset": numbers(), "batch_size": 3, "sampler": torch.tensor([5, 3, 3, 19])},
    "sampler of numpy integers": lambda: {"dataset": numbers(), "batch_size": 3, "sampler": np.array([5, 3, 19])},
    "sampler, no batches": lambda: {"dataset": numbers(), "batch_size": None, "sampler": [5, 3, 3, 19, 0]},
    "sampler that draws with replacement": lambda: {
        "dataset": numbers(),
        "batch_size": 7,
        "sampler": tud.RandomSampler(range(20), replacement=True, num_samples=100, generator=seeded()),
    },
    "weighted sampler": lambda: {
        "dataset": numbers(),
        "batch_size": 7,
        "sampler": tud.WeightedRandomSampler([0.1] * 10 + [0.9] * 10, 33, generator=seeded()),
    },
    "subset sampler": lambda: {
        "dataset": numbers(),
        "sampler": tud.SubsetRandomSampler([4, 8, 15, 16], generator=seeded()),
    },
    "distributed sampler": lambda: {
        "dataset": numbers(),
        "batch_size": 3,
        "sampler": tud.DistributedSampler(numbers(), num_replicas=2, rank=1, seed=7),
    },
    "sampler that is a generator": lambda: {"dataset": numbers(), "batch_size": 3, "sampler": (i for i in (5, 3, 1))},
    "sampler of texts": lambda: words() | {"batch_size": 3},
    "sampler of texts, no batches": lambda: words() | {"batch_size": None},
    "sampler of pairs": lambda: {
        "dataset": Words({("a", 1): 1, ("b", 2): 2}),
        "batch_size": 2,
        "sampler": [("b", 2), ("a", 1)],
    },
    "batch_sampler": lambda: {"dataset": numbers(), "batch_sampler": [[1], [2, 3, 4], [7, 7]]},
    "batch_sampler of tuples and ranges": lambda: {"dataset": numbers(), "batch_sampler": [(1, 2), range(3, 7)]},
    "batch_sampler of arrays": lambda: {"dataset": numbers(), "batch_sampler": np.arange(12).reshape(4, 3)},
    "batch_sampler of tensors": lambda: {"dataset": numbers(), "batch_sampler": torch.arange(12).reshape(4, 3)},
    "BatchSampler": lambda: {
        "dataset": numbers(),
        "batch_sampler": tud.BatchSampler(tud.RandomSampler(range(20), generator=seeded()), 6, drop_last=True),
    },
    "batch sampler as sampler": lambda: {
        "dataset": InBulkByList(),
        "batch_size": None,
        "sampler": tud.BatchSampler(tud.SequentialSampler(range(20)), 6, drop_last=False),
    },
    "lists of samples, collated": lambda: {
        "dataset": Bulks(),
        "batch_size": None,
        "sampler": tud.BatchSampler(tud.SequentialSampler(range(20)), 6, drop_last=False),
        "collate_fn": tud.default_collate,
    },
    "batches that are converted only": lambda: {
        "dataset": np.arange(24.0).reshape(8, 3),
        "batch_size": 3,
        "collate_fn": tud.default_convert,
    },
    "__getitems__": lambda: {"dataset": InBulk(range(20)), "batch_size": 3},
    "Subset": lambda: {"dataset": tud.Subset(numbers(), [3, 1, 4, 1, 5]), "batch_size": 2},
    "Subset of __getitems__": lambda: {"dataset": tud.Subset(InBulk(range(20)), [3, 1, 4, 1, 5]), "batch_size": 2},
    "random_split": lambda: {
        "dataset": tud.random_split(numbers(), [0.5, 0.5], generator=seeded())[1],
        "batch_size": 4,
    },
    "ConcatDataset": lambda: {"dataset": tud.ConcatDataset([numbers(), Items([100, 200])]), "batch_size": 6},
    "TensorDataset": lambda: {
        "dataset": tud.TensorDataset(torch.arange(20.0), torch.arange(40).reshape(20, 2)),
        "batch_size": 3,
    },
    "StackDataset": lambda: {
        "dataset": tud.StackDataset(a=numbers(), b=Items("abcdefghijklmnopqrst")),
        "batch_size": 3,
    },
    "a plain list": lambda: {"dataset": [3, 1, 4, 1, 5, 9], "batch_size": 4},
    "a range": lambda: {"dataset": range(100, 109), "batch_size": 4},
    "an array": lambda: {"dataset": np.arange(24.0).reshape(8, 3), "batch_size": 3},
    "a tensor": lambda: {"dataset": torch.arange(24).reshape(8, 3), "batch_size": 3},
    "a text": lambda: {"dataset": "antifreeze", "batch_size": 4},
    "iterable": lambda: {"dataset": Streamed(11), "batch_size": 3},
    "iterable, drop_last": lambda: {"dataset": Streamed(11), "batch_size": 3, "drop_last": True},
    "iterable, no batches": lambda: {"dataset": Streamed(11), "batch_size": None},
    "iterable of nothing": lambda: {"dataset": Streamed(0), "batch_size": 3},
    "ChainDataset": lambda: {"dataset": tud.ChainDataset([Streamed(5), Streamed(4)]), "batch_size": 2},
}


class Bulks(Items):
    """Takes a list of indices as one index, and returns a list of samples."""

    def __init__(self) -> None:
        super().__init__(range(20))

    def __getitem__(self, index: Any) -> Any:
        return [(float(i), {"n": i}) for i in index]


class InBulkByList(Items):
    """Takes a list of indices as one index."""

    def __init__(self) -> None:
        super().__init__(range(20))

    def __getitem__(self, index: Any) -> Any:
        return np.array(index) * 10


@pytest.mark.parametrize("name", ORDERS)
def test_batches_and_their_order_are_those_of_torch(name: str) -> None:
    """For an iterable dataset, two workers have another order than none, in torch as well."""
    make = ORDERS[name]
    is_iterable = isinstance(make()["dataset"], tud.IterableDataset)

    check(make, num_workers=(0, 1) if is_iterable else WORKERS)


@pytest.mark.parametrize("name", [*ORDERS, "sized iterable"])
def test_the_length_is_that_of_torch(name: str) -> None:
    """Or there is none, with the same error."""
    make = ORDERS.get(name, lambda: {"dataset": Sized(20), "batch_size": 3})
    expected, found = tud.DataLoader(**make()), ours(**make(), num_workers=2)
    try:
        length = len(expected)
    except TypeError:
        with pytest.raises(TypeError):
            len(found)
    else:
        assert len(found) == length
        if name != "sized iterable":  # torch's own iterator has no length there
            assert len(iter(found)) == len(iter(expected))


OPTIONS: dict[str, dict[str, Any]] = {
    "prefetch_factor": {"prefetch_factor": 5},
    "prefetch_factor of 1": {"prefetch_factor": 1},
    "pin_memory": {"pin_memory": True},
    "persistent_workers": {"persistent_workers": True},
    "timeout": {"timeout": 77},
    "fork": {"multiprocessing_context": "fork"},
    "spawn": {"multiprocessing_context": "spawn"},
    "forkserver": {"multiprocessing_context": torch.multiprocessing.get_context("forkserver")},
}


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_about_how_change_nothing(name: str) -> None:
    """Batches depend on the data and on the random numbers, not on how they are made."""
    check(lambda: {"dataset": numbers(), "batch_size": 3}, num_workers=[2], **OPTIONS[name])


def test_as_they_come_is_the_same_set() -> None:
    """The order is then free, what is in the batches is not."""
    expected = sorted(batch.tolist() for batch in tud.DataLoader(numbers(), batch_size=3))
    found = [batch.tolist() for batch in ours(numbers(), batch_size=3, num_workers=2, in_order=False)]
    streamed = [batch.tolist() for batch in ours(Streamed(11), batch_size=3, num_workers=2, in_order=False)]

    assert sorted(found) == expected
    assert sorted(itertools.chain(*streamed)) == list(range(11))


def test_as_they_come_does_not_wait_for_the_slow_one(tmp_path: Path) -> None:
    """The first batch is made only after all others were delivered."""
    gate = tmp_path / "gate"

    def wait(index: int) -> int:
        while index == 0 and not gate.exists():
            time.sleep(0.001)
        return index

    found = []
    for batch in ours(Made(12, wait), num_workers=2, in_order=False, prefetch_factor=1):
        found.append(int(batch))
        if len(found) == 11:
            gate.touch()

    assert found[-1] == 0
    assert sorted(found) == list(range(12))


@pytest.mark.parametrize("in_order", [True, False])
def test_a_batch_does_not_wait_for_the_one_behind_it(tmp_path: Path, in_order: bool) -> None:
    """It is delivered when it is finished, however long the worker is then busy with the next one."""
    gate = tmp_path / "gate"

    def wait(index: int) -> int:
        while index == 3 and not gate.exists():
            time.sleep(0.001)
        return index

    found = []
    for batch in ours(Made(6, wait), num_workers=1, in_order=in_order, timeout=10):
        found.append(int(batch))
        if found[-1] == 2:
            gate.touch()

    assert found == list(range(6))


def test_batches_that_are_pinned_stay_what_they_are_without_an_accelerator() -> None:
    """As in torch, which warns and does nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = ours(numbers(), batch_size=4, collate_fn=Pinnable, pin_memory=True, num_workers=1)
        batches = list(loader)

    assert batches[0] == Pinnable([0, 1, 2, 3])
