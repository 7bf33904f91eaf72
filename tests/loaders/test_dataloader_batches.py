"""What is in a batch of ``DataLoader``, and whose it is."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import (
    HERE,
    LARGE,
    PATIENCE_S,
    WORKERS,
    Box,
    Color,
    Items,
    Made,
    Point,
    Tagged,
    check,
    needs_grad,
    numbers,
    ours,
)

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")

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


def packed(i: int) -> Any:
    return torch.nn.utils.rnn.pack_sequence([torch.arange(5) + i, torch.arange(3)])


ALONE: dict[str, Callable[[int], Any]] = {
    "sparse": sparse,
    "nested": lambda i: torch.nested.nested_tensor([torch.ones(2) * i, torch.ones(3)]),
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


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", ALONE)
def test_anything_that_a_collate_function_returns_arrives(name: str) -> None:
    """A loader is not about tensors alone."""
    make = ALONE[name]

    check(lambda: {"dataset": Made(3, lambda i: i), "batch_size": 2, "collate_fn": lambda ids: [make(i) for i in ids]})


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested")
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
    cloudpickle.unregister_pickle_by_value(sys.modules["beside_torch"])
    try:
        batch = next(iter(ours(Items([Point(1, Color.RED)] * 4), batch_size=None, num_workers=1)))
    finally:
        cloudpickle.register_pickle_by_value(sys.modules["beside_torch"])

    assert type(batch) is Point
    assert batch.y is Color.RED


def test_a_function_of_the_script_arrives_as_itself() -> None:
    """The worker has a copy of it that no module has; the trainer has its own."""

    def named(ids: list[int]) -> Any:
        return functools.partial(plain, ids), collections.defaultdict(numbers)

    partial, default = next(iter(ours(numbers(), batch_size=3, collate_fn=named, num_workers=1)))

    assert partial.func is plain
    assert partial.args == ([0, 1, 2],)
    assert default.default_factory is numbers


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
    from beside_torch import same
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
        "import antifreeze.worker._task_context\n"
        "class Asks(list):\n"
        "    def __getitem__(self, i):\n"
        "        return sys.modules['antifreeze.worker._task_context'].__file__\n"
        "mine = antifreeze.worker._task_context.__file__;"
        "print({mine, *antifreeze.DataLoader(Asks([0]), batch_size=None, num_workers=1)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.stdout.strip() == repr({str(tmp_path / "antifreeze" / "worker" / "_task_context.py")}), done.stderr


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
