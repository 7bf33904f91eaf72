"""What the tests of ``DataLoader`` share: small datasets, and a comparison with what torch's loader gives."""

from __future__ import annotations

import collections
import enum
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
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
    if one.is_nested and other.is_nested:
        return len(one.unbind()) == len(other.unbind()) and all(map(_same_tensors, one.unbind(), other.unbind()))
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


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def numbers() -> Items:
    return Items(range(20))


def needs_grad(i: int, length: int = 3) -> torch.Tensor:
    return torch.full((length,), float(i), requires_grad=True)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def once(path: Path) -> bool:
    """Tell whether this is the first call with this path, of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
