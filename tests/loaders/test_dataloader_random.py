"""Random numbers in user code belong to the batch; what the loader itself draws is what torch's loader draws."""

# ruff: noqa: S311  nothing here is secret

from __future__ import annotations

import itertools
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


def test_batches_do_not_depend_on_how_far_workers_are_ahead() -> None:
    """For three epochs."""
    expected = epochs_of(loader_of(shuffle=True), 3)
    torch.manual_seed(1)

    assert epochs_of(loader_of(shuffle=True, num_workers=2, prefetch_factor=7), 3) == expected


def test_workers_that_stay_have_new_random_numbers_in_each_epoch() -> None:
    """Torch draws no seed for them after the first epoch; which worker makes a batch must not matter either."""
    expected = epochs_of(loader_of(), 1)
    found = []
    for num_workers in (1, 3):
        torch.manual_seed(1)
        found.append(epochs_of(loader_of(num_workers=num_workers, persistent_workers=True), 3))

    assert found[0] == found[1]
    assert found[0][:1] == expected
    assert all(one != other for one, other in itertools.combinations(found[0], 2))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_for_each_epoch_has_another_order_and_other_random_numbers(num_workers: int) -> None:
    """As with torch: loaders are often made in the loop, or by a framework that reloads them."""
    epochs = [epochs_of(loader_of(shuffle=True, num_workers=num_workers))[0] for _ in range(3)]

    for one, other in itertools.combinations(epochs, 2):
        indices = [{step[0][2] for step in epoch} for epoch in (one, other)]
        noise = [{step[1][2] for step in epoch} for epoch in (one, other)]
        assert indices[0] != indices[1]
        assert not noise[0] & noise[1]


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


def test_an_epoch_that_was_not_finished_counts() -> None:
    """What comes after it does not depend on how far it was read, nor on how far workers were ahead."""
    found = []
    for num_workers, steps in ((0, 1), (2, 1), (2, 5)):
        torch.manual_seed(1)
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


def seed_all(_: int) -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)


def test_seeding_in_worker_init_fn_has_no_effect() -> None:
    """Numbers belong to the batch, so nothing that is done to a worker can change them."""
    expected = epochs_of(loader_of(), 2)
    torch.manual_seed(1)

    assert epochs_of(loader_of(num_workers=2, worker_init_fn=seed_all), 2) == expected


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
    epochs = []
    for num_workers in (0, 1):
        torch.manual_seed(1)
        epochs.append(epochs_of(loader_of(Stream(), num_workers=num_workers), 2))
    assert epochs[0] == epochs[1]
    torch.manual_seed(1)
    expected = epochs_of(loader_of(Stream(), num_workers=2))
    torch.manual_seed(1)
    found = epochs_of(loader_of(Stream(tmp_path / "died"), num_workers=2, prefetch_factor=1))

    assert found == expected
    assert (tmp_path / "died").exists()


class Counted(tud.IterableDataset[Any]):
    """Draws nothing."""

    def __iter__(self) -> Iterator[Any]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        yield from range(first, LENGTH, step)


# -- the trainer's own random numbers ------------------------------------------------------------------------------

SAMPLED: dict[str, Callable[[], dict[str, Any]]] = {
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
@pytest.mark.parametrize("name", SAMPLED)
def test_what_user_code_draws_does_not_advance_the_trainers_generators(name: str, num_workers: int) -> None:
    """Weights and dropout are those of a run whose dataset draws nothing: torch's loader then draws what ours draws."""
    reference: Any = af.DataLoader if num_workers else tud.DataLoader
    quiet = {"dataset": Counted() if name == "iterable" else range(LENGTH), "collate_fn": list}
    found = []
    for kind, options in ((reference, quiet), (af.DataLoader, {"dataset": Augmented()})):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        np.random.randn()  # leaves the second of two normal numbers behind
        random.gauss(0, 1)
        options = {"batch_size": 3} | options | SAMPLED[name]() | (quiet if options is quiet else {})
        if options["batch_size"] is None:
            options.pop("collate_fn", None)
        loader: Any = kind(num_workers=num_workers, **options)
        states = [trainers_state()]
        for _ in range(2):
            batches = iter(loader)
            states.append(trainers_state())
            states += [trainers_state() for _ in batches]
            states.append(trainers_state())
        found.append(states)

    assert len(found[0]) == len(found[1])
    for moment, (one, other) in enumerate(zip(*found, strict=True)):
        assert one == other, f"moment {moment}"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_of_an_epoch_do_not_depend_on_what_the_trainer_draws(num_workers: int) -> None:
    """However much the training step draws, the next batch is the same. The next epoch is another one, as in torch."""
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

    assert found[0] == expected[0]
    assert found[1] != expected[1]


# -- torch's own order ---------------------------------------------------------------------------------------------

SHUFFLED: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "no batches": lambda: {"shuffle": True, "batch_size": None},
    "random sampler": SAMPLED["random sampler"],
    "with replacement": SAMPLED["with replacement"],
    "subset sampler": SAMPLED["subset sampler"],
    "weighted sampler": SAMPLED["weighted sampler"],
    "batch sampler": SAMPLED["batch sampler"],
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_the_order_is_that_of_torch_for_a_seed(name: str) -> None:
    """For two epochs."""
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
