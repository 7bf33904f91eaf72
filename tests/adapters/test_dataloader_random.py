"""Random numbers belong to the batch: not to the worker that makes it, and not to the trainer that asks for it."""

# ruff: noqa: S311  nothing here is secret

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_S = 100
WORKERS = (0, 1, 2, 5)
LENGTH = 40


class Augmented(tud.Dataset[Any]):
    """Draws from all three sources of random numbers for each sample."""

    def __init__(self, killed: Path | None = None, at: int = -1) -> None:
        self.killed, self.at = killed, at

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        drawn = random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3), torch.randn(1)
        if index == self.at and self.killed is not None and once(self.killed):
            os.kill(os.getpid(), signal.SIGKILL)
        return index, *drawn


def once(path: Path) -> bool:
    """Tell whether this is the first call with this path, of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def noisy(samples: list[Any]) -> Any:
    """Collate, and draw again: mixing samples of a batch is done here."""
    order = random.sample(range(len(samples)), len(samples))
    return (
        tud.default_collate([samples[i] for i in order]),
        np.random.permutation(9),
        torch.randperm(9),
        random.random(),
    )


def loader_of(dataset: Any = None, num_workers: int = 0, **options: Any) -> Any:
    if num_workers:
        options.setdefault("timeout", PATIENCE_S)
    return af.DataLoader(dataset or Augmented(), num_workers=num_workers, **{"batch_size": 3} | options)


def as_bytes(batch: Any) -> Any:
    """Return a batch with tensors and arrays as bytes."""
    if isinstance(batch, torch.Tensor):
        return batch.dtype, batch.shape, batch.numpy().tobytes()
    if isinstance(batch, np.ndarray):
        return batch.dtype, batch.shape, batch.tobytes()
    if isinstance(batch, list | tuple):
        return [as_bytes(part) for part in batch]
    return batch


def epochs_of(loader: Any, number: int = 1) -> list[Any]:
    return [[as_bytes(batch) for batch in loader] for _ in range(number)]


def trainers_state() -> Any:
    name, words, *rest = np.random.get_state()
    return random.getstate(), (name, words.tolist(), *rest), torch.get_rng_state().tolist()


@pytest.fixture(scope="module", autouse=True)
def the_nursery_stays() -> Iterator[None]:
    """Keep one worker all the time: the process that workers are born from has then imported torch but once."""
    loader = loader_of(num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    yield
    del batches, loader


@pytest.fixture(autouse=True)
def a_known_beginning() -> Iterator[None]:
    """Seed the trainer, and put back what other tests had."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


# -- the same for any number of workers ----------------------------------------------------------------------------

LOADERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffle": {"shuffle": True},
    "collate_fn": {"collate_fn": noisy, "shuffle": True},
    "no batches": {"batch_size": None, "shuffle": True},
    "large batches": {"batch_size": 16, "collate_fn": noisy},
}


@pytest.mark.parametrize("name", LOADERS)
def test_batches_do_not_depend_on_the_number_of_workers(name: str) -> None:
    """Byte for byte, for two epochs, which differ from each other."""
    found = {}
    for num_workers in WORKERS:
        torch.manual_seed(7)
        found[num_workers] = epochs_of(loader_of(num_workers=num_workers, **LOADERS[name]), 2)

    for num_workers in WORKERS:
        assert found[num_workers] == found[0], f"num_workers={num_workers}"
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"prefetch_factor": 7}], ids=str)
def test_batches_do_not_depend_on_how_workers_are_used(options: dict[str, Any]) -> None:
    """A worker that stays does not go on with its random numbers, but begins anew."""
    expected = epochs_of(loader_of(shuffle=True), 3)
    found = epochs_of(loader_of(shuffle=True, num_workers=2, **options), 3)

    assert found == expected


def test_samples_of_one_batch_differ_and_so_do_batches() -> None:
    """A seed for each batch is not a seed for each sample, nor one for all."""
    drawn = [float(x) for batch in loader_of(num_workers=2) for x in batch[1]]

    assert len(set(drawn)) == LENGTH


def test_a_generator_decides() -> None:
    """The order and the random numbers follow from ``generator=``, whatever the trainer's seed."""
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        for num_workers in (0, 2):
            generator = torch.Generator().manual_seed(5)
            found.append(epochs_of(loader_of(num_workers=num_workers, shuffle=True, generator=generator), 2))

    assert all(epochs == found[0] for epochs in found)


def test_a_seed_decides() -> None:
    """The same after the same ``torch.manual_seed``, another after another."""
    found = {}
    for run, seed in enumerate((3, 3, 4)):
        torch.manual_seed(seed)
        found[run] = epochs_of(loader_of(num_workers=1, shuffle=True), 2)

    assert found[0] == found[1]
    assert found[0] != found[2]


def test_a_loader_that_was_used_follows_another_seed() -> None:
    """One loader, and a run of its own for each seed: torch's loader begins with it anew."""
    loader, orders = loader_of(shuffle=True), []
    for seed in (3, 4):
        torch.manual_seed(seed)
        orders.append([i for batch in loader for i in batch[0].tolist()])
    torch.manual_seed(4)
    fresh = [i for batch in loader_of(shuffle=True) for i in batch[0].tolist()]

    assert orders[1] == fresh


def test_two_loaders_do_not_see_each_other() -> None:
    """A validation loader that is read in between changes nothing for the training loader."""
    alone = epochs_of(loader_of(shuffle=True), 2)
    training, validation = loader_of(shuffle=True, num_workers=1), loader_of(num_workers=1)
    found = []
    for _ in range(2):
        found += epochs_of(training)
        epochs_of(validation)

    assert found == alone


def test_an_epoch_that_was_not_finished_counts() -> None:
    """What comes after it does not depend on how far it was read, nor on how far workers were ahead."""
    found = []
    for num_workers, steps in ((0, 1), (2, 1), (2, 5)):
        loader = loader_of(shuffle=True, num_workers=num_workers)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        del batches
        found.append(epochs_of(loader))

    assert found[0] == found[1] == found[2]


def test_a_worker_that_was_killed_changes_no_byte(tmp_path: Path) -> None:
    """What it had to make is made again with the same random numbers."""
    torch.manual_seed(7)
    expected = epochs_of(loader_of(collate_fn=noisy), 2)
    for at in (0, 20, LENGTH - 1):
        torch.manual_seed(7)
        dataset = Augmented(tmp_path / str(at), at)
        assert epochs_of(loader_of(dataset, num_workers=2, collate_fn=noisy), 2) == expected
        assert dataset.killed is not None
        assert dataset.killed.exists()


def test_left_out_samples_do_not_shift_random_numbers_of_other_batches() -> None:
    """Only the batch that a sample is missing from can be another one."""

    class Failing(Augmented):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise ValueError("seven")
            return super().__getitem__(index)

    torch.manual_seed(7)
    (expected,) = epochs_of(loader_of(collate_fn=noisy))
    for num_workers in (0, 2):
        torch.manual_seed(7)
        (found,) = epochs_of(loader_of(Failing(), num_workers=num_workers, collate_fn=noisy, on_error="skip"))
        assert [a == b for a, b in zip(found, expected, strict=True)] == [step != 2 for step in range(len(expected))]


class Stream(tud.IterableDataset[Any]):
    """Draws while it is iterated."""

    def __init__(self, killed: Path | None = None) -> None:
        self.killed = killed

    def __iter__(self) -> Iterator[Any]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, LENGTH, step):
            if index == 21 and self.killed is not None and once(self.killed):
                os.kill(os.getpid(), signal.SIGKILL)
            yield index, random.random(), np.random.rand(), torch.rand(2)


def test_an_iterable_draws_the_same_again(tmp_path: Path) -> None:
    """Without workers and with one, and with two of which one is killed."""
    assert epochs_of(loader_of(Stream(), num_workers=1), 2) == epochs_of(loader_of(Stream()), 2)
    expected = epochs_of(loader_of(Stream(), num_workers=2))
    found = epochs_of(loader_of(Stream(tmp_path / "died"), num_workers=2, prefetch_factor=1))

    assert found == expected
    assert (tmp_path / "died").exists()


# -- the trainer's own random numbers ------------------------------------------------------------------------------

UNTOUCHED: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: lambda options=options: options for name, options in LOADERS.items()},
    "iterable": lambda: {"dataset": Stream()},
    "random sampler": lambda: {"sampler": tud.RandomSampler(range(LENGTH))},
    "with replacement": lambda: {"sampler": tud.RandomSampler(range(LENGTH), replacement=True, num_samples=99)},
    "subset sampler": lambda: {"sampler": tud.SubsetRandomSampler(range(LENGTH))},
    "weighted sampler": lambda: {"sampler": tud.WeightedRandomSampler([1.0] * LENGTH, 50)},
    "batch sampler": lambda: {
        "batch_sampler": tud.BatchSampler(tud.RandomSampler(range(LENGTH)), 3, drop_last=False),
        "batch_size": 1,
    },
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", UNTOUCHED)
def test_the_trainers_random_numbers_are_untouched(name: str, num_workers: int) -> None:
    """Weights and dropout are the same whether or not data is loaded in between."""
    np.random.randn()  # leaves the second of two normal numbers behind
    random.gauss(0, 1)
    before = trainers_state()
    loader = loader_of(num_workers=num_workers, **UNTOUCHED[name]())
    assert trainers_state() == before
    for _ in range(2):
        for _ in loader:
            assert trainers_state() == before
    assert trainers_state() == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_do_not_depend_on_what_the_trainer_draws(num_workers: int) -> None:
    """However much the training step draws, the next batch is the same."""
    torch.manual_seed(7)
    expected = epochs_of(loader_of(shuffle=True), 2)
    torch.manual_seed(7)
    loader = loader_of(shuffle=True, num_workers=num_workers)
    found: list[Any] = []
    for _ in range(2):
        found.append([])
        for batch in loader:
            found[-1].append(as_bytes(batch))
            random.random(), np.random.rand(5), torch.rand(5)

    assert found == expected


# -- torch's own order ---------------------------------------------------------------------------------------------

SHUFFLED: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "no batches": lambda: {"shuffle": True, "batch_size": None},
    "random sampler": UNTOUCHED["random sampler"],
    "with replacement": UNTOUCHED["with replacement"],
    "subset sampler": UNTOUCHED["subset sampler"],
    "weighted sampler": UNTOUCHED["weighted sampler"],
    "batch sampler": UNTOUCHED["batch sampler"],
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_the_order_is_that_of_torch_for_a_seed(name: str) -> None:
    """For two epochs, as long as the trainer draws nothing else from torch."""
    orders = {}
    for num_workers in (None, 0, 2):
        torch.manual_seed(11)
        options = {"batch_size": 3} | SHUFFLED[name]()
        kind: Any = tud.DataLoader if num_workers is None else af.DataLoader
        loader = kind(range(LENGTH), num_workers=num_workers or 0, collate_fn=lambda ids: ids, **options)
        orders[num_workers] = [list(loader) for _ in range(2)]

    assert orders[0] == orders[None]
    assert orders[2] == orders[None]


def test_the_order_is_that_of_torch_for_a_generator() -> None:
    """Which is left in the state that torch leaves it in."""
    found = []
    for kind, num_workers in ((tud.DataLoader, 0), (af.DataLoader, 0), (af.DataLoader, 2)):
        generator: Any = torch.Generator().manual_seed(5)
        loader: Any = kind(range(LENGTH), shuffle=True, generator=generator, num_workers=num_workers)
        orders = [[int(i) for i in loader] for _ in range(2)]
        found.append((orders, generator.get_state().tolist()))

    assert found[1] == found[0]
    assert found[2] == found[0]
