"""``DataLoader`` gives what torch's gives: the same batches, lengths and errors, for every argument."""

from __future__ import annotations

import collections
import copy
import datetime as dt
import decimal
import enum
import io
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = Path(__file__).parent
PATIENCE_S = 100
"""No batch takes this long; whoever waits for one hears of it."""
WORKERS = (0, 1, 2)
LARGE = 40_000
"""So many numbers that they travel in memory of their own, not inside a message."""


class Items(tud.Dataset[Any]):
    """A dataset of what is in a list."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


class Made(tud.Dataset[Any]):
    """A dataset whose samples a function makes, where they are asked for."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(int(index))


class InBulk(Items):
    """Is asked for many samples at once."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("torch prefers __getitems__")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.items[i] * 10 for i in indices]


class Streamed(tud.IterableDataset[Any]):
    """Numbers of which each worker yields its own share."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, self.length, step)


class Sized(Streamed):
    """Knows its length."""

    def __len__(self) -> int:
        return self.length


class Point(NamedTuple):
    """Keeps its type when it is collated."""

    x: Any
    y: Any


class Color(enum.Enum):
    """Must be the same object after its journey."""

    RED = 1


class Box:
    """Something that only a collate function of its own can make a batch of."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and same(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Pinnable:
    """A batch that would know how to pin itself."""

    value: Any

    def pin_memory(self) -> Pinnable:
        """Must be called only where there is an accelerator."""
        raise AssertionError("there is nothing to pin for")


class Tagged(torch.Tensor):
    """A tensor of the user's own class."""


# -- comparing -----------------------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Tell whether two batches are equal in types, structure, dtypes, shapes and values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensors(one, other)
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.tolist() == other.tolist() if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, dict | collections.abc.Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _same_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    facts = [(t.dtype, t.shape, t.layout, t.requires_grad, t.device) for t in (one, other)]
    if facts[0] != facts[1]:
        return False
    if one.layout is torch.sparse_coo:
        one, other = one.coalesce(), other.coalesce()
        return _same_tensors(one.indices(), other.indices()) and _same_tensors(one.values(), other.values())
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return _bytes(one) == _bytes(other)


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def ours(dataset: Any, num_workers: int = 0, **options: Any) -> Any:
    """Return our loader; with workers, none that waits for ever."""
    if num_workers:
        options.setdefault("timeout", PATIENCE_S)
    return af.DataLoader(dataset, num_workers=num_workers, **options)


def check(make: Callable[[], dict[str, Any]], num_workers: Iterable[int] = WORKERS, **more: Any) -> list[Any]:
    """Assert that our loader gives what torch's gives without workers, and return that."""
    expected = list(tud.DataLoader(**make()))
    for number in num_workers:
        found = list(ours(**make(), **more, num_workers=number))
        assert len(found) == len(expected), f"num_workers={number}"
        for step, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert same(one, other), f"num_workers={number}, batch {step}: {one!r} is not {other!r}"
    return expected


@pytest.fixture(scope="module", autouse=True)
def the_nursery_stays() -> Iterator[None]:
    """Keep one worker all the time: the process that workers are born from has then imported torch but once."""
    loader = ours(Items([torch.zeros(1)] * 4), num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    yield
    del batches, loader


# -- what is read, in which order ----------------------------------------------------------------------------------


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def numbers() -> Items:
    return Items(range(20))


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


# -- what is in a batch --------------------------------------------------------------------------------------------

NUMPY = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
TORCH = [*NUMPY, "bfloat16", "float8_e4m3fn", "float8_e5m2"]


def of_each_dtype(make: Callable[[int, str], Any], names: list[str]) -> Items:
    return Items({name: make(i, name) for name in names} for i in range(4))


def plain(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype))


SAMPLES: dict[str, Callable[[], Items]] = {
    "numbers": lambda: Items([(i, i / 3, i > 1, -i, 2**40 + i) for i in range(4)]),
    "dict": lambda: Items({"a": i, "b": {"c": float(i), "d": [i, (i, "x")]}} for i in range(4)),
    "ordered dict": lambda: Items(collections.OrderedDict(b=i, a=2 * i) for i in range(4)),
    "default dict": lambda: Items(collections.defaultdict(int, b=i) for i in range(4)),
    "namedtuple": lambda: Items(Point(i, {"n": Point(torch.ones(2) * i, "t")}) for i in range(4)),
    "texts": lambda: Items(("é" * i, f"{i}".encode()) for i in range(4)),
    "long texts": lambda: Items("é" * LARGE + str(i) for i in range(4)),
    "numpy arrays": lambda: of_each_dtype(lambda i, d: (np.arange(6).reshape(2, 3) + i).astype(d), NUMPY),
    "numpy arrays that are large": lambda: of_each_dtype(lambda i, d: (np.arange(LARGE) + i).astype(d), NUMPY[:8]),
    "numpy scalars": lambda: of_each_dtype(lambda i, d: np.dtype(d).type(i), [n for n in NUMPY if n != "uint64"]),
    "numpy arrays of no dimension": lambda: of_each_dtype(lambda i, d: np.array(i, d), NUMPY),
    "numpy arrays in Fortran order": lambda: Items(
        np.asfortranarray(np.arange(LARGE).reshape(4, -1)) for _ in range(4)
    ),
    "numpy arrays with gaps": lambda: Items(np.arange(3 * LARGE).reshape(-1, 3)[:, i % 3] for i in range(4)),
    "numpy arrays without items": lambda: Items(np.zeros((0, 3), np.float32) for _ in range(4)),
    "tensors": lambda: of_each_dtype(lambda i, d: plain(torch.arange(6).reshape(2, 3) + i, d), TORCH),
    "tensors that are large": lambda: of_each_dtype(lambda i, d: plain(torch.arange(LARGE) % 7 + i, d), TORCH[-5:]),
    "tensors of no dimension": lambda: of_each_dtype(lambda i, d: plain(torch.tensor(i), d), TORCH),
    "tensors without items": lambda: Items((torch.zeros(0, 3), torch.zeros(2, 0, dtype=torch.int8)) for _ in range(4)),
    "channels last": lambda: Items(
        torch.arange(4 * LARGE).reshape(1, 4, 100, -1).to(memory_format=torch.channels_last)[0] for _ in range(4)
    ),
    "tensors with gaps": lambda: Items(torch.arange(3 * LARGE).reshape(-1, 3)[:, i % 3] for i in range(4)),
    "expanded tensors": lambda: Items(torch.tensor([[i]]).expand(3, LARGE) for i in range(4)),
    "nan and infinity": lambda: Items(torch.tensor([float("nan"), float("inf"), -0.0]) * i for i in range(4)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_collated_samples_are_those_of_torch(name: str) -> None:
    """Also one by one, as without batches they are converted and not collated."""
    samples = SAMPLES[name]()

    check(lambda: {"dataset": samples, "batch_size": 3})
    check(lambda: {"dataset": samples, "batch_size": None}, num_workers=[0, 2])


def sparse(i: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, i], [1, 1]]), torch.tensor([1.0, 2.0]), (5, 5))


def needs_grad(i: int, length: int = 3) -> torch.Tensor:
    return torch.full((length,), float(i), requires_grad=True)


def packed(i: int) -> Any:
    return torch.nn.utils.rnn.pack_sequence([torch.arange(5) + i, torch.arange(3)])


ALONE: dict[str, Callable[[int], Any]] = {
    "sparse": sparse,
    "compressed sparse": lambda i: (torch.eye(4) * (i + 1)).to_sparse_csr(),
    "with a gradient to come": needs_grad,
    "large, with a gradient to come": lambda i: needs_grad(i, LARGE),
    "parameter": lambda i: torch.nn.Parameter(torch.ones(3) * i),
    "conjugate": lambda i: (torch.arange(3) + 1j * i).conj(),
    "negative by a flag": lambda i: (torch.arange(3) + 1j * i).conj().imag,
    "packed sequence": packed,
    "own class of tensor": lambda i: torch.ones(3).as_subclass(Tagged) * i,
    "own class": lambda i: Box(torch.ones(LARGE) * i),
    "an enum's member": lambda _: Color.RED,
    "None": lambda _: None,
    "odd things": lambda i: (
        {1, i},
        frozenset({i}),
        decimal.Decimal(i),
        dt.datetime(2024, 1, 1 + i, tzinfo=dt.UTC),
        Path(f"/{i}"),
        range(i),
        slice(i),
        torch.Size([i, 2]),
        torch.float16,
        torch.device("cpu"),
        np.float16,
        np.dtype("f4"),
        re.compile("a"),
        2**100,
        complex(1, i),
        ...,
    ),
    "times": lambda i: np.array(["2024-01-01"], "M8[D]") + i,
    "texts in an array": lambda i: np.array(["a", "bc" * i]),
    "objects in an array": lambda i: np.array([{"a": i}, None], dtype=object),
    "records": lambda _: np.zeros(3, [("a", "i4"), ("b", "f8", 2)]),
    "the other byte order": lambda i: np.arange(5, dtype=">i4") + np.array(i, ">i4"),
    "large, the other byte order": lambda _: np.arange(LARGE, dtype=">i4"),
    "bytes": lambda i: b"x" * (LARGE * i),
    "bytearray": lambda i: bytearray(b"x" * (LARGE * i)),
    "lambda's result": lambda i: [i, [i, {"a": [i]}]],
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", ALONE)
def test_anything_that_a_collate_function_returns_arrives(name: str) -> None:
    """A loader is not about tensors alone."""
    make = ALONE[name]

    check(lambda: {"dataset": Made(3, lambda i: i), "batch_size": 2, "collate_fn": lambda ids: [make(i) for i in ids]})


@pytest.mark.filterwarnings("ignore:Sparse")
def test_every_such_sample_also_comes_alone() -> None:
    """Without batches a sample is converted by ``default_convert``, unless there is a collate function."""
    names = [
        name
        for name in ALONE
        if name not in ("records", "times", "the other byte order", "large, the other byte order")
    ]
    check(lambda: {"dataset": Made(len(names), lambda i: ALONE[names[i]](2)), "batch_size": None}, num_workers=[2])


def test_strides_arrive() -> None:
    """Channels-last is a promise to the convolution that comes next."""
    image = torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last)
    large = torch.zeros(2, 3, 200, 200).to(memory_format=torch.channels_last)
    (found,) = ours(Items([(image, large, large.transpose(0, 3))]), batch_size=None, num_workers=1)

    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert found[1].is_contiguous(memory_format=torch.channels_last)
    assert found[2].stride() == large.transpose(0, 3).stride()


def test_what_is_one_object_stays_one() -> None:
    """Weights that are tied in the batch are tied after the journey."""

    def tied(ids: list[int]) -> Any:
        tensor, array = torch.zeros(LARGE), np.zeros(LARGE)
        return tensor, tensor, array, array

    first, second, third, fourth = next(iter(ours(numbers(), batch_size=3, collate_fn=tied, num_workers=1)))

    assert first is second
    assert third is fourth


def test_a_class_of_an_importable_module_arrives_as_itself() -> None:
    """So ``isinstance`` goes on working, in the worker as in the trainer."""
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    try:
        batch = next(iter(ours(Items([Point(1, Color.RED)] * 4), batch_size=None, num_workers=1)))
    finally:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])

    assert type(batch) is Point
    assert batch.y is Color.RED


WITHOUT_TORCH = """
import collections, sys
import numpy as np
import torch
import torch.utils.data as tud
import antifreeze as af
sys.path.insert(0, {here!r})

class Items:
    def __init__(self, items):
        self.items = items
    def __len__(self):
        return len(self.items)
    def __getitem__(self, index):
        return self.items[index]

class Asks(Items):
    def __getitem__(self, index):
        import sys
        return "torch" in sys.modules

Point = collections.namedtuple("Point", "x y")
arrays = {{d: [(np.arange(n) + i).astype(d) for i in range(5)] for n in (6, 40000) for d in {dtypes!r}}}
cases = {{
    "numbers": Items([(i, i / 3, i > 1, np.float32(i), np.int8(i)) for i in range(5)]),
    "nested": Items([{{"a": i, "b": [i, ("x", b"y", Point(i, np.ones(3) * i))]}} for i in range(5)]),
    "strides": Items([np.arange(120000).reshape(-1, 3)[:, i % 3] for i in range(5)]),
    "Fortran": Items([np.asfortranarray(np.ones((200, 300)) * i) for i in range(5)]),
    "nothing": Items([np.zeros((0, 3)) for i in range(5)]),
    **{{d: Items(a) for d, a in arrays.items()}},
}}
if __name__ == "__main__":
    found = [list(af.DataLoader(data, batch_size=size, num_workers=1)) for data in cases.values() for size in (2, None)]
    torch_there = any(any(batch) for batch in af.DataLoader(Asks([0] * 4), batch_size=2, num_workers=1))
    from test_dataloader import same
    expected = [list(tud.DataLoader(data, batch_size=size)) for data in cases.values() for size in (2, None)]
    wrong = [n for n, a, b in zip([n for n in cases for _ in "ab"], found, expected) if not same(a, b)]
    tensors = [t for case in found for t in case if hasattr(t, "add_")]
    writable = all(t.fill_(0) is t for t in tensors)
    print(torch_there, wrong, writable)
"""


def test_workers_without_torch_give_the_same() -> None:
    """Who needs no torch in the worker does not wait for its import, and sees no difference."""
    code = WITHOUT_TORCH.format(here=str(HERE), dtypes=NUMPY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.stdout.strip() == "False [] True", done.stderr


def test_workers_use_the_trainers_own_antifreeze(tmp_path: Path) -> None:
    """A checkout that a script has put into its path, where another version is installed."""
    shutil.copytree(Path(af.__file__).parent, tmp_path / "antifreeze")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import antifreeze.child._desk\n"
        "class Asks(list):\n"
        "    def __getitem__(self, i):\n"
        "        return sys.modules['antifreeze.child._desk'].__file__\n"
        "print({antifreeze.child._desk.__file__, *antifreeze.DataLoader(Asks([0]), batch_size=None, num_workers=1)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.stdout.strip() == repr({str(tmp_path / "antifreeze" / "child" / "_desk.py")}), done.stderr


# -- who owns a batch ----------------------------------------------------------------------------------------------


def fresh(index: int) -> dict[str, Any]:
    return {"array": np.full(LARGE, index), "tensor": torch.full((LARGE,), index), "small": np.full(3, index)}


@pytest.mark.parametrize("num_workers", WORKERS)
def test_batches_that_are_kept_and_changed_stay_apart(num_workers: int) -> None:
    """A delivered batch belongs to the trainer: it is writable, and no other one changes with it."""
    kept = []
    for step, batch in enumerate(ours(Made(60, fresh), batch_size=2, num_workers=num_workers)):
        for tensor in batch.values():
            assert (tensor == torch.tensor([[2 * step], [2 * step + 1]])).all()
            tensor.add_(1000)
        kept.append(batch)

    for step, batch in enumerate(kept):
        for tensor in batch.values():
            assert (tensor == torch.tensor([[2 * step], [2 * step + 1]]) + 1000).all()
    assert len({tensor.data_ptr() for batch in kept for tensor in batch.values()}) == 3 * len(kept)


def test_what_is_kept_of_a_batch_is_kept() -> None:
    """A view of a batch, as a tensor or as an array, holds its memory while others come and go."""
    kept: list[Any] = []
    for batch in ours(Made(60, fresh), batch_size=2, num_workers=2):
        kept.append((batch["tensor"][1, -5:], batch["array"].numpy()[0, 7:9]))
        del batch

    assert [view.tolist() for view, _ in kept] == [[2 * step + 1] * 5 for step in range(30)]
    assert [view.tolist() for _, view in kept] == [[2 * step] * 2 for step in range(30)]


def test_batches_outlive_their_loader() -> None:
    """And the workers, and the process that those were born from."""
    batches = list(ours(Made(6, fresh), batch_size=2, num_workers=2))

    assert [int(batch["tensor"].sum()) for batch in batches] == [LARGE * (4 * step + 1) for step in range(3)]


def test_batches_of_very_different_sizes() -> None:
    """Memory is reused between them, and must not be taken for more than it holds."""
    sizes = [1, 300_000, 10, 5_000_000, 0, 40_000, 2_000_000, 3, 1_000_000] * 3

    def ragged(ids: list[int]) -> Any:
        return [np.full(sizes[i], i % 256, np.uint8) for i in ids], torch.full((sizes[ids[0]],), ids[0])

    for step, (arrays, tensor) in enumerate(
        ours(Items(range(len(sizes))), batch_size=3, collate_fn=ragged, num_workers=2)
    ):
        ids = range(3 * step, 3 * step + 3)
        assert [len(array) for array in arrays] == [sizes[i] for i in ids]
        assert all((array == i % 256).all() for i, array in zip(ids, arrays, strict=True))
        assert len(tensor) == sizes[ids[0]]
        assert (tensor == ids[0]).all()


def test_batches_of_more_than_100_megabytes() -> None:
    """They take no other way."""
    nbytes = 120_000_000
    loader = ours(Made(4, lambda i: torch.full((nbytes // 2,), i, dtype=torch.uint8)), batch_size=2, num_workers=2)

    assert [(batch.numel(), int(batch[0, -1]), int(batch[1, 0])) for batch in loader] == [
        (nbytes, 0, 1),
        (nbytes, 2, 3),
    ]


class Caching(Items):
    """Keeps what it has returned, and returns it again."""

    kept: Any = None

    def collate(self, samples: list[Any]) -> Any:
        """Return the first batch, always."""
        if self.kept is None:
            self.kept = tud.default_collate(samples)
        return self.kept


class CachingView(Caching):
    """Keeps a part of what it returns, in another form."""

    view: Any = None

    def collate(self, samples: list[Any]) -> Any:
        """Return a new batch that begins with a part of the first one."""
        batch = tud.default_collate(samples)
        if self.view is None:
            self.view = batch[0].numpy()
        batch[0] = torch.from_numpy(self.view)
        return batch


@pytest.mark.parametrize("kind", [Caching, CachingView])
@pytest.mark.parametrize("length", [5, LARGE])
def test_a_batch_that_user_code_keeps_is_not_the_trainers(kind: type[Caching], length: int) -> None:
    """What the trainer does to its batch does not reach the cache in the worker."""
    dataset = kind(np.full(length, 1.0) for _ in range(24))
    for batch in ours(dataset, batch_size=2, collate_fn=dataset.collate, num_workers=1):
        assert (batch == 1).all()
        batch.zero_()


def test_a_buffer_that_user_code_fills_again_and_again() -> None:
    """Each batch is what it was when it was returned."""

    class Refilling(Items):
        buffer = np.zeros(LARGE)
        tensor = torch.zeros(LARGE)

        def collate(self, samples: list[int]) -> Any:
            self.buffer[:] = samples[0]
            self.tensor.fill_(samples[0])
            return self.buffer, self.tensor

    dataset = Refilling(range(20))
    kept = list(ours(dataset, collate_fn=dataset.collate, num_workers=1))

    assert [(int(a[0]), int(a[-1]), int(t[0]), int(t[-1])) for a, t in kept] == [(i,) * 4 for i in range(20)]


def test_samples_that_are_parts_of_the_dataset_are_copies() -> None:
    """The trainer that changes a batch does not change the dataset, neither its own nor the workers'."""
    array, tensor = np.ones((6, LARGE)), torch.ones(6, LARGE)
    dataset = Items(zip(array, tensor, strict=True))
    for _ in range(2):
        for one, other in ours(dataset, batch_size=None, num_workers=1):
            assert (one == 1).all()
            assert (other == 1).all()
            one.zero_()
            other.zero_()

    assert (array == 1).all()
    assert (tensor == 1).all()


def test_samples_in_the_dataset_can_be_changed_in_the_worker() -> None:
    """As in a worker of torch, which has its own copy; the trainer's stays as it is."""
    array = np.zeros(LARGE)

    def add(index: int) -> float:
        array[0] += 1
        return float(array[0])

    assert [float(batch) for batch in ours(Made(4, add), num_workers=1)] == [1, 2, 3, 4]
    assert array[0] == 0


# -- workers -------------------------------------------------------------------------------------------------------


def test_workers_know_themselves() -> None:
    """``get_worker_info`` says what torch's says, in ``worker_init_fn``, the dataset and the collate function."""
    told: list[Any] = []

    def tell(worker: int) -> None:
        info = tud.get_worker_info()
        told.append((worker, info.id, info.num_workers, type(info).__name__, info.dataset is not None))
        info.dataset.items = [value + 100 for value in info.dataset.items]

    class Asking(Items):
        def __getitem__(self, index: int) -> Any:
            info = tud.get_worker_info()
            return self.items[index], told, info.id, info.num_workers, info.seed, info.dataset is self

    def collate(samples: list[Any]) -> Any:
        return samples, tud.get_worker_info().id

    dataset = Asking(range(20))
    found = list(ours(dataset, batch_size=3, worker_init_fn=tell, collate_fn=collate, num_workers=2))
    samples = [(sample, worker) for batch, worker in found for sample in batch]
    seeds = {sample[2]: sample[4] for sample, _ in samples}

    assert [sample[0] for sample, _ in samples] == list(range(100, 120))
    for sample, worker in samples:
        assert sample[1] == [(worker, worker, 2, "WorkerInfo", True)]
        assert (sample[2], sample[3], sample[5]) == (worker, 2, True)
    assert len({seed - worker for worker, seed in seeds.items()}) == 1
    assert tud.get_worker_info() is None


def test_the_seed_of_a_worker_is_that_of_torch() -> None:
    """Code that seeds a library of its own from it gets the same numbers."""
    generator, again = seeded(), seeded()
    loader = ours(Made(3, lambda _: tud.get_worker_info().seed), num_workers=1, generator=generator)
    epochs = [[int(batch) for batch in loader] for _ in range(2)]
    bases = [int(torch.empty((), dtype=torch.int64).random_(generator=again)) for _ in range(2)]

    assert epochs == [[base] * 3 for base in bases]
    assert torch.equal(generator.get_state(), again.get_state())


def test_without_workers_everything_happens_here() -> None:
    """``worker_init_fn`` is not called, there is no worker to know of, and the dataset is not a copy."""

    class Counting(Items):
        calls = 0

        def __getitem__(self, index: int) -> Any:
            self.calls += 1
            return (tud.get_worker_info() is None, os.getpid())

    dataset = Counting(range(6))
    batches = list(ours(dataset, batch_size=3, worker_init_fn=lambda _: 1 / 0))

    assert dataset.calls == 6
    assert [batch[0].all() and (batch[1] == os.getpid()).all() for batch in batches] == [True, True]


def parents(loader: Any) -> set[tuple[int, int]]:
    return {(int(pid), int(parent)) for batch in loader for pid, parent in batch}


def pids() -> Made:
    return Made(12, lambda _: (os.getpid(), os.getppid()))


def test_workers_are_not_forked_from_the_trainer() -> None:
    """Whatever ``multiprocessing_context`` says."""
    options = {"collate_fn": list, "batch_size": 2, "num_workers": 2}
    for context in (None, "fork", "spawn", "forkserver"):
        found = parents(ours(pids(), multiprocessing_context=context, **options))
        assert os.getpid() not in {parent for _, parent in found}


def test_workers_that_stay_are_the_same_in_each_epoch() -> None:
    """Others are born anew, with the dataset as it is in the trainer."""
    options = {"collate_fn": list, "batch_size": 2, "num_workers": 2}
    staying, going = ours(pids(), persistent_workers=True, **options), ours(pids(), **options)
    stayed = [parents(staying) for _ in range(3)]
    went = [parents(going) for _ in range(3)]

    assert len(set.union(*stayed)) <= 2
    assert not set.intersection(*went)


@pytest.mark.parametrize("persistent", [False, True])
def test_epoch_after_epoch(persistent: bool) -> None:
    """Also after one that was left in the middle, and for two that run at the same time."""
    loader = ours(numbers(), batch_size=3, num_workers=2, persistent_workers=persistent)
    expected = [batch.tolist() for batch in tud.DataLoader(numbers(), batch_size=3)]
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == expected
    for batch in loader:
        assert batch.tolist() == expected[0]
        break
    assert [batch.tolist() for batch in loader] == expected
    assert [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)] == list(
        zip(expected, expected, strict=True)
    )


def test_a_sampler_is_asked_anew_in_each_epoch() -> None:
    """``set_epoch`` of a distributed sampler has its effect."""

    def make() -> dict[str, Any]:
        sampler = tud.DistributedSampler(numbers(), num_replicas=2, rank=0, shuffle=True)
        return {"dataset": numbers(), "batch_size": 3, "sampler": sampler}

    expected, found = tud.DataLoader(**make()), ours(**make(), num_workers=2, persistent_workers=True)
    for epoch in range(3):
        expected.sampler.set_epoch(epoch)
        found.sampler.set_epoch(epoch)
        assert same(list(found), list(expected))


def test_the_dataset_of_the_next_epoch_is_what_it_is_then() -> None:
    """A dataset that the trainer changes between epochs (a curriculum) reaches workers that are born for an epoch."""
    dataset = numbers()
    loader = ours(dataset, batch_size=20, num_workers=1)
    before = next(iter(loader)).tolist()
    dataset.items = dataset.items[::-1]

    assert next(iter(loader)).tolist() == before[::-1]


def test_attributes_that_are_set_later_count() -> None:
    """Frameworks do that: for a loader that must not use workers, or to seed them."""
    loader = ours(numbers(), batch_size=3)
    loader.collate_fn = list
    assert next(iter(loader)) == [0, 1, 2]
    loader.num_workers, loader.prefetch_factor, loader.timeout = 2, 4, 20
    loader.worker_init_fn = lambda _: tud.get_worker_info().dataset.items.reverse()
    assert next(iter(loader)) == [19, 18, 17]
    loader.num_workers = 0
    assert next(iter(loader)) == [0, 1, 2]


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_attributes_that_cannot_be_set_later(name: str) -> None:
    """The same as in torch."""
    loader = ours(numbers(), batch_size=3)
    with pytest.raises(ValueError, match="should not be set"):
        setattr(loader, name, None)


def test_a_loader_is_one_of_torchs_with_its_attributes() -> None:
    """Frameworks ask with isinstance, and read what the loader was made with."""
    options = {"batch_size": 3, "num_workers": 2, "generator": seeded(), "worker_init_fn": print, "in_order": False}
    expected, found = tud.DataLoader(numbers(), **options), ours(numbers(), **options)
    names = {name for name in vars(expected) if "multiprocessing" not in name} - {
        "dataset",
        "sampler",
        "batch_sampler",
        "timeout",
    }

    assert isinstance(found, tud.DataLoader)
    assert {name: getattr(found, name) for name in names} == {name: getattr(expected, name) for name in names}
    assert type(found.sampler) is type(expected.sampler)
    assert type(found.batch_sampler) is type(expected.batch_sampler)


def test_a_loader_can_be_pickled_and_copied_also_after_an_epoch() -> None:
    """A launcher sends it to its processes, and a framework keeps a copy."""
    loader = ours(numbers(), batch_size=3, num_workers=1)
    torchs = tud.DataLoader(numbers(), batch_size=3)
    expected = [batch.tolist() for batch in torchs]
    for _ in range(2):
        again = pickle.loads(cloudpickle.dumps(loader))  # noqa: S301  our own
        assert [batch.tolist() for batch in again] == expected
        assert [batch.tolist() for batch in loader] == expected


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_loader_is_a_loader(duplicate: Callable[[Any], Any]) -> None:
    """Neither needs the other, also if the workers of one of them are still there."""
    loader = ours(numbers(), batch_size=3, num_workers=1, persistent_workers=True)
    expected = [batch.tolist() for batch in loader]
    again = duplicate(loader)
    assert [batch.tolist() for batch in again] == expected
    del loader
    assert [batch.tolist() for batch in again] == expected


def test_the_iterator_is_an_iterator() -> None:
    """It stays at its end, and ``iter`` of it is itself."""
    for num_workers in (0, 2):
        batches = iter(ours(numbers(), batch_size=9, num_workers=num_workers))
        assert iter(batches) is batches
        assert len(list(batches)) == 3
        assert next(batches, None) is None
        assert next(batches, None) is None


# -- wrong arguments and failing code ------------------------------------------------------------------------------

WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    "num_workers below 0": lambda: {"num_workers": -1},
    "num_workers of text": lambda: {"num_workers": "2"},
    "num_workers of None": lambda: {"num_workers": None},
    "timeout below 0": lambda: {"timeout": -1},
    "prefetch without workers": lambda: {"prefetch_factor": 2},
    "prefetch below 0": lambda: {"prefetch_factor": -1, "num_workers": 1},
    "persistent without workers": lambda: {"persistent_workers": True},
    "context without workers": lambda: {"multiprocessing_context": "spawn"},
    "unknown context": lambda: {"multiprocessing_context": "spoon", "num_workers": 1},
    "context of another type": lambda: {"multiprocessing_context": 3, "num_workers": 1},
    "sampler and shuffle": lambda: {"sampler": [1], "shuffle": True},
    "batch_sampler and batch_size": lambda: {"batch_sampler": [[1]], "batch_size": 2},
    "batch_sampler and shuffle": lambda: {"batch_sampler": [[1]], "shuffle": True},
    "batch_sampler and drop_last": lambda: {"batch_sampler": [[1]], "drop_last": True},
    "no batches, drop_last": lambda: {"batch_size": None, "drop_last": True},
    "batch_size of 0": lambda: {"batch_size": 0},
    "batch_size below 0": lambda: {"batch_size": -3},
    "batch_size of a fraction": lambda: {"batch_size": 2.5},
    "drop_last of text": lambda: {"drop_last": "yes"},
    "shuffle of no samples": lambda: {"dataset": Items([]), "shuffle": True},
    "shuffle without a length": lambda: {"dataset": object(), "shuffle": True},
    "iterable and shuffle": lambda: {"dataset": Streamed(3), "shuffle": True},
    "iterable and sampler": lambda: {"dataset": Streamed(3), "sampler": [1]},
    "iterable and batch_sampler": lambda: {"dataset": Streamed(3), "batch_sampler": [[1]]},
    "an unknown argument": lambda: {"batchsize": 3},
    "too many positions": lambda: {"collate_fn": None, "": 1},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_as_by_torch(name: str) -> None:
    """With the same type of error, when the loader is made."""
    options = {"dataset": numbers()} | WRONG[name]()
    errors = []
    for kind in (tud.DataLoader, af.DataLoader):
        with pytest.raises((ValueError, TypeError)) as caught:
            kind(**options)
        errors.append(caught.value)

    assert isinstance(errors[1], type(errors[0]))


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"on_error": 3},
        {"stall_limit": 0},
        {"stall_limit": "2"},
        {"stall_limit": float("nan")},
        {"max_restarts": -1},
        {"max_restarts": 2.5},
        {"worker_memory_limit": "much"},
        {"worker_memory_limit": -1},
    ],
    ids=str,
)
def test_wrong_arguments_of_our_own_are_refused(options: dict[str, Any]) -> None:
    """At once, by an error that names the argument."""
    with pytest.raises(af.ConfigError) as caught:
        af.DataLoader(numbers(), **options)

    assert caught.value.argument == next(iter(options))


class Custom(Exception):
    """An error that cannot be rebuilt from its message alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


def fails(kind: type[Exception], arguments: tuple[Any, ...]) -> Callable[[int], int]:
    def get(index: int) -> int:
        if index == 7:
            raise kind(*arguments)
        return index

    return get


ERRORS: dict[type[Exception], tuple[Any, ...]] = {
    ValueError: ("v",),
    KeyError: ("k",),
    IndexError: (),
    FileNotFoundError: (2, "no such file", "f"),
    RuntimeError: ("r", 3),
    AssertionError: (),
    UnicodeDecodeError: ("utf-8", b"x", 0, 1, "why"),
    Custom: (3, "c"),
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("kind", ERRORS)
def test_errors_of_the_dataset_are_caught_by_their_type(kind: type[Exception], num_workers: int) -> None:
    """As with torch without workers, after the batches before it; who goes on gets those behind it."""
    batches = iter(ours(Made(12, fails(kind, ERRORS[kind])), batch_size=3, num_workers=num_workers))

    assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(kind) as caught:
        next(batches)
    assert isinstance(caught.value, af.UserCodeError)
    assert "sample 7" in str(caught.value)
    assert isinstance(caught.value.__cause__, kind)
    assert [batch.tolist() for batch in batches] == [[9, 10, 11]]


MISFITS: dict[str, Callable[[int], Any]] = {
    "shapes": lambda i: np.zeros(3 if i != 4 else 5),
    "tensors": lambda i: torch.zeros(3 if i != 4 else 5),
    "None": lambda i: i if i != 4 else None,
    "None in a dict": lambda i: {"a": i if i != 4 else None},
    "keys": lambda i: {"a": 1, "b": 2} if i != 4 else {"a": 1},
    "lengths": lambda i: [1, 2] if i != 4 else [1],
}


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("name", MISFITS)
def test_samples_that_do_not_fit_together_are_named(name: str, num_workers: int) -> None:
    """Torch says only that something does not fit; the type of its error stays."""
    with pytest.raises((RuntimeError, TypeError, KeyError)) as expected:
        list(tud.DataLoader(Made(6, MISFITS[name]), batch_size=3))
    with pytest.raises(expected.type, match="sample 4") as caught:
        list(ours(Made(6, MISFITS[name]), batch_size=3, num_workers=num_workers))
    assert isinstance(caught.value, af.UserCodeError)


def test_tensors_that_need_gradients_can_be_collated() -> None:
    """Torch refuses that in workers, and not without them."""
    check(lambda: {"dataset": Made(6, needs_grad), "batch_size": 3})


def test_an_error_of_the_sampler_is_the_users_own() -> None:
    """It is raised in the trainer, where the sampler runs, in its place among the batches."""

    class Failing(tud.Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            yield from (0, 1, 2, 3)
            raise ZeroDivisionError("in the sampler")

    for num_workers in WORKERS:
        found = []
        with pytest.raises(ZeroDivisionError, match="in the sampler"):
            found += list(ours(numbers(), batch_size=2, sampler=Failing(), num_workers=num_workers))


def test_a_timeout_is_a_runtime_error_as_in_torch() -> None:
    """Who sets ``timeout=`` and catches what torch raises goes on catching it."""
    loader = ours(Made(3, lambda _: time.sleep(1000)), num_workers=1, timeout=0.3)
    with pytest.raises(RuntimeError, match="timed out"):
        next(iter(loader))


def test_what_cannot_be_sent_is_named() -> None:
    """To the worker, and back from it."""
    with pytest.raises(af.NotPicklable, match="items"):
        next(iter(ours(Items((j for j in [i]) for i in range(3)), num_workers=1)))
    with pytest.raises(af.NotPicklable, match="cannot be pickled"):
        next(iter(ours(Made(3, lambda _: threading.current_thread()), collate_fn=list, num_workers=1)))


# -- iterable datasets ---------------------------------------------------------------------------------------------


def in_turn(length: int, num_workers: int, batch_size: int | None, drop_last: bool) -> list[Any]:
    """Return the batches that torch gives for ``Streamed``: one of each worker in turn, while it has any."""
    shares = []
    for worker in range(num_workers):
        share = list(range(worker, length, num_workers))
        if batch_size is None:
            shares.append(share)
            continue
        batches = [share[i : i + batch_size] for i in range(0, len(share), batch_size)]
        shares.append([b for b in batches if len(b) == batch_size or not drop_last])
    rows = itertools.zip_longest(*shares)
    return [batch for row in rows for batch in row if batch is not None]


@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (3, False), (3, True), (None, False)])
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_an_iterable_comes_in_turn(num_workers: int, batch_size: int | None, drop_last: bool) -> None:
    """One batch of each worker's share after the other, as in torch; a share that has ended is passed over."""
    for length in (0, 1, 22):
        loader = ours(Streamed(length), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)
        found = [batch.tolist() if batch_size else batch for batch in loader]
        assert found == in_turn(length, num_workers, batch_size, drop_last)


class Uneven(tud.IterableDataset[Any]):
    """Has a share of very different length for each worker."""

    def __iter__(self) -> Iterator[Any]:
        worker = tud.get_worker_info().id
        yield from [worker] * [0, 9, 2][worker]


def test_shares_of_uneven_length() -> None:
    """The longest one is read to its end."""
    for persistent in (False, True):
        loader = ours(Uneven(), batch_size=None, num_workers=3, persistent_workers=persistent)
        for _ in range(2):
            assert list(loader) == [1, 2, 1, 2, *[1] * 7]


def test_torchs_own_order_for_several_workers() -> None:
    """The rule above is checked against torch itself, in a process of its own: it would fork this one."""
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import torch.utils.data as tud, test_dataloader as t\n"
        "one = [b.tolist() for b in tud.DataLoader(t.Streamed(22), batch_size=3, num_workers=3)]\n"
        "two = list(tud.DataLoader(t.Uneven(), batch_size=None, num_workers=3))\n"
        "print(one == t.in_turn(22, 3, 3, False), two == [1, 2, 1, 2, *[1] * 7])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.stdout.split() == ["True", "True"], done.stderr


class Whole(tud.IterableDataset[int]):
    """Yields everything in each worker."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[int]:
        yield from range(self.first, 20)


def test_an_iterable_that_everybody_reads_whole_is_an_error() -> None:
    """Torch would deliver every sample twice and say nothing."""
    for num_workers in (0, 1):
        batches = list(ours(Whole(), batch_size=4, num_workers=num_workers))
        assert [i for batch in batches for i in batch.tolist()] == list(range(20))
    with pytest.raises(af.DuplicateData, match="get_worker_info"):
        list(ours(Whole(), batch_size=4, num_workers=2))


def test_an_iterable_that_is_split_by_worker_init_fn_is_none() -> None:
    """The second way that torch's documentation shows."""

    class Range(tud.IterableDataset[int]):
        first, last = 0, 20

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.first, self.last))

    def split(worker: int) -> None:
        dataset: Any = tud.get_worker_info().dataset
        dataset.first, dataset.last = 10 * worker, 10 * worker + 10

    loader = ours(Range(), batch_size=5, worker_init_fn=split, num_workers=2)

    assert [batch[0].item() for batch in loader] == [0, 10, 5, 15]


def test_shares_that_are_equal_by_their_nature_are_none() -> None:
    """A dataset that has asked for its share may still yield the same values as the others."""

    class Zeros(tud.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.repeat(0, 20 // tud.get_worker_info().num_workers)

    assert sum(len(batch) for batch in ours(Zeros(), batch_size=5, num_workers=2)) == 20


RANK = """
import sys
import torch, torch.distributed as dist
sys.path.insert(0, {here!r})
import antifreeze as af
from test_dataloader import Streamed

if __name__ == "__main__":
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    datasets = Streamed(24), Streamed(8), Streamed(16 - 8 * rank)
    loaders = [af.DataLoader(dataset, batch_size=4, num_workers=2, timeout=60) for dataset in datasets]
    for _ in range(4):
        print([len(list(loader)) for loader in loaders], end=" ")
    dist.barrier()
"""


def test_every_rank_gets_as_many_batches_in_every_epoch(tmp_path: Path) -> None:
    """Whoever makes uneven ranks even must not touch those that are."""
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(here=str(HERE)))
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store"], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        found = [rank.communicate(timeout=PATIENCE_S)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(PATIENCE_S)

    assert found == [" ".join(["[6, 2, 4]"] * 4)] * 2


def once(path: Path) -> bool:
    """Tell whether this is the first call with this path, of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(tud.IterableDataset[Any]):
    """Kills its worker once, at one sample of the second share.

    With ``prefetch_factor=1`` a worker begins a batch only when the one before it has come back.
    """

    def __init__(self, folder: Path, *, random: bool = False) -> None:
        self.folder, self.random = folder, random

    def __iter__(self) -> Iterator[Any]:
        worker: Any = tud.get_worker_info()
        salt = os.urandom(8) if self.random else b""
        for i in range(worker.id, 40, worker.num_workers):
            if i == 21 and once(self.folder / "died"):
                die()
            yield i, salt


def test_an_iterable_goes_on_where_its_worker_was_killed(tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, the order stays."""
    for number, batch_size in enumerate((3, None)):
        folder = tmp_path / str(number)
        folder.mkdir()
        loader = ours(Mortal(folder), batch_size=batch_size, num_workers=2, prefetch_factor=1)
        found = [batch[0].tolist() if batch_size else batch[0] for batch in loader]

        assert found == in_turn(40, 2, batch_size, drop_last=False)
        assert len(loader.report(io.StringIO()).restarts) == 1


def test_an_iterable_that_cannot_be_repeated_is_an_error(tmp_path: Path) -> None:
    """It cannot be told which of its samples are still to come; to guess would lose some or repeat them."""
    with pytest.raises(af.NotRepeatable):
        list(ours(Mortal(tmp_path, random=True), batch_size=3, num_workers=2, prefetch_factor=1))


class Resumable(Mortal):
    """Has a state, counts what it has made in a file, and cannot be repeated without the state."""

    next_one = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next_one}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_one = state["next"]

    def __iter__(self) -> Iterator[Any]:
        worker: Any = tud.get_worker_info()
        first, self.next_one = self.next_one, 0
        salt = os.urandom(8)
        for i in range(first, 20):
            value = i * worker.num_workers + worker.id
            if value == 21 and once(self.folder / "died"):
                die()
            with (self.folder / f"made-{worker.id}").open("a") as file:
                file.write(f"{value}\n")
            self.next_one = i + 1
            yield value, salt
        self.next_one = 0


@pytest.mark.parametrize("batch_size", [1, 3, None])
def test_an_iterable_with_a_state_goes_on_from_it(tmp_path: Path, batch_size: int | None) -> None:
    """Without making again what was delivered, and epoch after epoch."""
    options: dict[str, Any] = {"batch_size": batch_size, "prefetch_factor": 1, "persistent_workers": True}
    loader = ours(Resumable(tmp_path), num_workers=2, **options)
    for _ in range(2):
        found = [batch[0].tolist() if batch_size else batch[0] for batch in loader]
        assert found == in_turn(40, 2, batch_size, drop_last=False)

    made = [int(line) for line in (tmp_path / "made-1").read_text().split()]
    assert all(made.count(value) == 2 for value in range(1, 19, 2))


def test_an_iterator_with_a_state_goes_on_from_it(tmp_path: Path) -> None:
    """The state may belong to what ``iter(dataset)`` returns."""

    class Counter:
        def __init__(self) -> None:
            self.worker: Any = tud.get_worker_info()
            self.i, self.salt = 0, os.urandom(8)

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            value = self.i * self.worker.num_workers + self.worker.id
            if value >= 40:
                raise StopIteration
            if value == 21 and once(tmp_path / "died"):
                die()
            self.i += 1
            return value, self.salt

        def state_dict(self) -> Any:
            return {"i": self.i}

        def load_state_dict(self, state: Any) -> None:
            self.i = state["i"]

    class Counted(tud.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return Counter()

    found = [batch[0].tolist() for batch in ours(Counted(), batch_size=3, num_workers=2, prefetch_factor=1)]

    assert found == in_turn(40, 2, 3, drop_last=False)


def test_an_iterable_that_fails_in_its_second_epoch() -> None:
    """The first one is whole, and the error names what failed."""

    class Fails(tud.IterableDataset[int]):
        epochs = 0

        def __iter__(self) -> Iterator[int]:
            self.epochs += 1
            if self.epochs > 1:
                raise ValueError("no second time")
            info = tud.get_worker_info()
            return iter(range(info.id, 10, info.num_workers))

    loader = ours(Fails(), batch_size=2, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 6
    with pytest.raises(ValueError, match="no second time") as caught:
        list(loader)
    assert "iter(dataset)" in str(caught.value)


# -- samples that fail ---------------------------------------------------------------------------------------------


def bad(index: int) -> int:
    if index in (4, 9, 10, 11):
        raise ValueError(f"bad {index}")
    return index


GOOD = [[0, 1, 2], [3, 5], [6, 7, 8], [12, 13, 14]]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_samples_that_fail_are_left_out_if_that_is_wished(num_workers: int, tmp_path: Path) -> None:
    """Each is reported and logged; a batch of which nothing is left does not come."""
    log = tmp_path / "skips.jsonl"
    loader = ours(Made(15, bad), batch_size=3, on_error="skip", skip_log=log, num_workers=num_workers)
    found = [batch.tolist() for batch in loader]
    report = loader.report(io.StringIO())

    assert found == GOOD
    assert [skip.sample for skip in report.skipped] == [f"sample {i} of Made" for i in (4, 9, 10, 11)]
    assert [(skip.epoch, skip.step) for skip in report.skipped] == [(0, 1), (0, 3), (0, 3), (0, 3)]
    assert "bad 4" in report.skipped[0].reason
    assert report.num_skipped == 4
    assert [json.loads(line)["sample"] for line in log.read_text().splitlines()] == [s.sample for s in report.skipped]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_a_function_decides_about_samples_that_fail(num_workers: int) -> None:
    """It is called in the trainer, with the error that would be raised."""
    asked: list[Any] = []

    def decide(error: Any) -> str:
        asked.append(error)
        return "skip" if "bad 9" not in str(error) else "raise"

    loader = ours(Made(15, bad), batch_size=3, on_error=decide, num_workers=num_workers)
    batches = iter(loader)
    found = [next(batches).tolist() for _ in range(3)]
    with pytest.raises(ValueError, match="bad 9"):
        next(batches)
    found += [batch.tolist() for batch in batches]

    assert found == GOOD
    assert [error.sample for error in asked] == ["sample 4", "sample 9"]
    assert all(isinstance(error, af.UserCodeError) for error in asked)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_fail_can_be_left_out_without_batches(num_workers: int) -> None:
    """Then their place stays empty."""
    loader = ours(Made(15, bad), batch_size=None, on_error="skip", num_workers=num_workers)

    assert list(loader) == [i for i in range(15) if i not in (4, 9, 10, 11)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_arrays_of_indices_can_be_left_out(num_workers: int) -> None:
    """A batch sampler may give arrays, which are neither true nor false."""
    indices = np.arange(15).reshape(5, 3)
    loader = ours(Made(15, bad), batch_sampler=indices, on_error="skip", num_workers=num_workers)

    assert [batch.tolist() for batch in loader] == GOOD


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_a_dataset_that_is_asked_in_bulk_can_be_left_out(num_workers: int) -> None:
    """One by one, as there is no other way to know which of them fails."""

    class Bulk(Made):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self.make(index) for index in indices]

    for on_error in ("skip", lambda _: "skip"):
        loader = ours(Bulk(15, bad), batch_size=3, on_error=on_error, num_workers=num_workers)
        assert [batch.tolist() for batch in loader] == GOOD


@pytest.mark.parametrize("num_workers", [0, 1])
def test_samples_of_an_iterable_can_be_left_out(num_workers: int) -> None:
    """If its iterator can go on; a generator that has raised cannot."""

    class Numbers:
        i = -1

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            self.i += 1
            if self.i >= 15:
                raise StopIteration
            return bad(self.i)

    class Stream(tud.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return Numbers()

    class Generated(tud.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from map(bad, range(15))

    loader = ours(Stream(), batch_size=3, on_error="skip", num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == GOOD
    with pytest.raises(ValueError, match="bad 4"):
        list(ours(Generated(), batch_size=3, on_error="skip", num_workers=num_workers))


def deadly(index: int) -> int:
    if index == 4:
        die()
    return index


def test_a_sample_that_kills_its_worker_is_an_error_that_names_it() -> None:
    """After it was tried twice."""
    with pytest.raises(af.WorkerDied, match="sample 4") as caught:
        list(ours(Made(15, deadly), batch_size=3, num_workers=2))

    assert isinstance(caught.value, RuntimeError)
    assert "SIGKILL" in str(caught.value)


@pytest.mark.parametrize("on_error", ["skip", lambda _: "skip"], ids=["skip", "function"])
def test_a_sample_that_kills_its_worker_is_left_out_if_that_is_wished(on_error: Any) -> None:
    """All others come, in order."""
    loader = ours(Made(15, deadly), batch_size=3, on_error=on_error, num_workers=2)
    found = [batch.tolist() for batch in loader]
    report = loader.report(io.StringIO())

    assert found == [[0, 1, 2], [3, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
    assert [skip.sample for skip in report.skipped] == ["sample 4 of Made"]
    assert len(report.restarts) == 2


def test_a_batch_that_needs_a_worker_that_was_killed_is_made_again(tmp_path: Path) -> None:
    """The same batches in the same order, and the report says why it took longer."""

    def kills_once(index: int) -> int:
        if index == 31 and once(tmp_path / "died"):
            die()
        return index

    loader = ours(Made(60, kills_once), batch_size=3, num_workers=2)
    found = [batch.tolist() for batch in loader]
    (restart,) = loader.report(io.StringIO()).restarts

    assert found == [[i, i + 1, i + 2] for i in range(0, 60, 3)]
    assert "31" in restart.sample
    assert restart.cause
    assert restart.pid > 0


# -- the report ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", WORKERS)
def test_the_report_counts(num_workers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all epochs, and it is printed as it is returned."""
    loader = ours(numbers(), batch_size=3, num_workers=num_workers)
    for _ in range(2):
        list(loader)
    report = loader.report()

    assert (report.epochs, report.delivered_batches, report.delivered_samples) == (2, 14, 40)
    assert (report.num_workers, report.batch_size) == (num_workers, 3)
    assert (report.skipped, report.restarts, report.num_skipped) == ((), (), 0)
    assert report.waiting_s > 0
    assert report.wall_s >= report.waiting_s
    assert {"fetch", "collate"} <= set(report.stage_s)
    assert capsys.readouterr().out == f"{report}\n"
    assert "2 epochs, 14 batches, 40 samples" in str(report)
    assert "sample sample" not in str(report)


def test_the_report_of_a_loader_that_was_not_used() -> None:
    """Nothing happened, and it says so."""
    report = ours(numbers(), num_workers=2).report(io.StringIO())

    assert (report.epochs, report.delivered_batches, report.restarts) == (0, 0, ())


def test_an_iterator_that_was_thrown_away_is_no_epoch() -> None:
    """Lightning makes one before it restores its state."""
    loader = ours(Made(15, bad), batch_size=3, on_error="skip")
    iter(loader)
    list(loader)

    assert {skip.epoch for skip in loader.report(io.StringIO()).skipped} == {0}
