"""What scripts do with torch's loader beyond its arguments: its private names, and the map of types it collates."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

import antifreeze

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")


class Parents:
    """Gives the process that a worker was forked from."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[1])


class Again:
    """A batch sampler that begins again at its end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Endless(antifreeze.DataLoader):
    """A loader that keeps one iterator for all epochs, as those of detection libraries do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self) -> None:
        self.iterator._shutdown_workers()
        self.iterator = self._get_iterator()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_that_keeps_its_iterator_can_be_reset(num_workers: int) -> None:
    loader = Endless(list(range(10)), batch_size=4, num_workers=num_workers)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    for _ in range(2):
        assert [batch.tolist() for batch in loader] == whole
    loader.reset()
    assert [batch.tolist() for batch in loader] == whole


def test_the_private_way_to_an_iterator_does_not_fork_the_trainer() -> None:
    """Torch's own method would make an iterator of torch's."""
    public = {int(batch[0]) for batch in antifreeze.DataLoader(Parents(), num_workers=2)}
    private = {int(batch[0]) for batch in antifreeze.DataLoader(Parents(), num_workers=2)._get_iterator()}
    here = int(Path("/proc/self/stat").read_text().split()[0])

    assert here not in public | private


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_were_shut_down_are_gone_and_the_next_epoch_has_others(persistent: bool) -> None:
    loader = antifreeze.DataLoader(list(range(8)), num_workers=2, persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    batches._shutdown_workers()
    batches._shutdown_workers()

    assert [int(batch) for batch in loader] == list(range(8))


@dataclasses.dataclass
class Example:
    """A type that torch does not collate."""

    number: int


def stacked(batch: list[Example], *, collate_fn_map: Any = None) -> Any:
    return {"numbers": torch.tensor([example.number for example in batch])}


def joined(batch: list[str], *, collate_fn_map: Any = None) -> str:
    return "|".join(batch)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_types_that_were_added_to_torchs_collate_reach_workers(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, Example, stacked)
    monkeypatch.setitem(default_collate_fn_map, str, joined)
    samples = [(Example(i), f"name {i}", torch.tensor(i)) for i in range(4)]
    loader = antifreeze.DataLoader(samples, batch_size=2, num_workers=num_workers)

    found = [(batch[0]["numbers"].tolist(), batch[1], batch[2].tolist()) for batch in loader]

    assert found == [([0, 1], "name 0|name 1", [0, 1]), ([2, 3], "name 2|name 3", [2, 3])]
