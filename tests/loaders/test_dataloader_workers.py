"""The workers of ``DataLoader``, its epochs, and its attributes."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import PATIENCE_S, WORKERS, Items, Made, numbers, ours, same, seeded

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")


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


def test_a_loader_can_be_named_in_annotations() -> None:
    """With the type of what it loads, as torch's can."""

    def length(loader: af.DataLoader[torch.Tensor]) -> int:
        return len(loader)

    assert typing.get_type_hints(length, {"af": af, "torch": torch})["loader"] == af.DataLoader[torch.Tensor]


def test_the_iterator_is_an_iterator() -> None:
    """It stays at its end, and ``iter`` of it is itself."""
    for num_workers in (0, 2):
        batches = iter(ours(numbers(), batch_size=9, num_workers=num_workers))
        assert iter(batches) is batches
        assert len(list(batches)) == 3
        assert next(batches, None) is None
        assert next(batches, None) is None


def test_a_file_that_is_larger_than_the_memory_is_mapped_in_workers_too(tmp_path: Path) -> None:
    """As those who train on tokens have it."""
    path = tmp_path / "tokens.bin"
    with path.open("wb") as file:
        file.truncate(1 << 37)  # it is all holes but for its end
        file.seek(-32, io.SEEK_END)
        file.write(np.arange(16, dtype=np.uint16).tobytes())
    tokens = np.memmap(path, np.uint16, "r")
    found = list(ours(Made(4, lambda i: tokens[-16:][4 * i : 4 * i + 4].astype(int)), num_workers=2))

    assert torch.cat(found).flatten().tolist() == list(range(16))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_several_threads_take_batches_from_one_iterator(num_workers: int) -> None:
    """Each batch goes to one of them, and all of them hear of the end."""
    batches, found = iter(ours(Items(range(200)), batch_size=2, num_workers=num_workers)), []
    with ThreadPoolExecutor(4) as pool:
        for taken in pool.map(lambda _: [batch.tolist() for batch in batches], range(4), timeout=PATIENCE_S):
            found += taken

    assert sorted(found) == [[i, i + 1] for i in range(0, 200, 2)]
