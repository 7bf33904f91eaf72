"""A run that is interrupted and goes on from ``state_dict()`` gives the batches that it would have given."""

# ruff: noqa: S311  nothing here is secret

from __future__ import annotations

import base64
import copy
import inspect
import itertools
import json
import logging
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from hypothesis import example, given, settings
from hypothesis import strategies as st

import antifreeze as af
from antifreeze.loaders._generators import Drawn
from antifreeze.loaders._saved_state import ShardPosition, to_state
from antifreeze.pool import ShardProgress

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

TRIALS = settings(max_examples=max(40, settings().max_examples // 12))  # for each kind of sampler and dataset
Make = Callable[[], Any]
Batches = list[Any]


class Noisy(tud.Dataset[Any]):
    """Each sample says what it is, and which random numbers it was made with."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return int(index), random.random(), float(np.random.rand()), float(torch.rand(()))


class NoisyStream(tud.IterableDataset[Any]):
    """The same, one after the other."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.length, step):
            yield index, random.random(), float(torch.rand(()))


def as_is(samples: Any) -> Any:
    return samples


def saved(loader: Any) -> dict[str, Any]:
    """Return the state as it comes out of a file."""
    text = json.dumps(loader.state_dict())
    assert len(text) < 8192
    state: dict[str, Any] = json.loads(text)
    return state


def epochs_of(loader: Any, number: int) -> list[Batches]:
    return [list(loader) for _ in range(number)]


def take(loader: Any, number: int) -> Batches:
    return list(itertools.islice(loader, number))


def lives(make: Make, expected: list[Batches], cuts: list[int], *, sees_end: bool = True) -> Batches:
    """Return the batches of a run that dies after so many batches, again and again, and goes on from its state.

    A loop that does not see the end takes as many batches as there are, and never asks in vain.
    """
    found: Batches = []
    sizes, state = [len(batches) for batches in expected], None
    for cut in [*cuts, sum(sizes)]:
        torch.manual_seed(len(found) + 1000)
        loader = make()
        if state is not None:
            loader.load_state_dict(state)
        until = min(len(found) + cut, sum(sizes))
        while len(found) < until:
            borders = list(itertools.accumulate(sizes))
            border = next(b for b in borders if b > len(found))
            batches = iter(loader)
            found += itertools.islice(batches, min(until, border) - len(found))
            if len(found) == border and sees_end:
                assert list(batches) == []
        state = saved(loader)
        assert saved(loader) == state
    return found


def check_lives(make: Make, cuts: list[int], *, num_epochs: int = 3, sees_end: bool = True) -> None:
    torch.manual_seed(7)
    expected = epochs_of(make(), num_epochs)
    torch.manual_seed(7)
    # The first life begins where the undisturbed run does.
    loader = make()
    first = take(loader, cuts[0])
    state = saved(loader)

    def make_again() -> Any:
        again = make()
        if not used:
            used.append(True)
            again.load_state_dict(state)
        return again

    used: list[bool] = []
    assert first == expected[0][: cuts[0]]
    rest = [expected[0][len(first) :], *expected[1:]]
    rest = [batches for batches in rest if batches]
    assert lives(make_again, rest, cuts[1:], sees_end=sees_end) == list(itertools.chain(*rest))


# -- every sampler, every place ------------------------------------------------------------------------------------


class Shuffled:
    """A sampler of the user's, which follows from ``set_epoch`` alone."""

    epoch = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(self.length), self.length))

    def __len__(self) -> int:
        return self.length


class Counting:
    """A sampler with a state: it can be repeated only from that."""

    def __init__(self, length: int) -> None:
        self.length, self.salt, self.next = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        if self.next == 0:
            self.salt += 1
        while self.next < self.length:
            self.next += 1
            yield (self.next * self.salt) % self.length
        self.next = 0

    def __len__(self) -> int:
        return self.length

    def state_dict(self) -> dict[str, int]:
        return {"salt": self.salt, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.salt, self.next = state["salt"], state["next"]


class CountingIterator:
    """The iterator of a sampler, with a state of its own."""

    def __init__(self, length: int) -> None:
        self.length, self.next = length, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.next == self.length:
            raise StopIteration
        self.next += 1
        return self.length - self.next

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class HasCountingIterator:
    """A sampler whose iterator has the state."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return CountingIterator(self.length)

    def __len__(self) -> int:
        return self.length


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def used_before(seed: int = 5) -> torch.Generator:
    """Return a generator that has split the data before it shuffles it."""
    generator = seeded(seed)
    tud.random_split(range(100), [40, 60], generator=generator)  # type: ignore[arg-type]
    return generator


LOADERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda _: {},
    "shuffle": lambda _: {"shuffle": True},
    "generator": lambda _: {"shuffle": True, "generator": seeded()},
    "used generator": lambda _: {"shuffle": True, "generator": used_before()},
    "generator, in order": lambda _: {"generator": seeded()},
    "sampler with a generator": lambda n: {"sampler": tud.RandomSampler(range(n), generator=seeded())},
    "two generators": lambda n: {
        "sampler": tud.RandomSampler(range(n), generator=seeded(6)),
        "generator": seeded(),
    },
    "generator and a sampler without": lambda n: {"sampler": tud.RandomSampler(range(n)), "generator": seeded()},
    "with replacement": lambda n: {"sampler": tud.RandomSampler(range(n), replacement=True, num_samples=n + 3)},
    "drawn as it goes": lambda n: {
        "sampler": tud.RandomSampler(range(n), replacement=True, num_samples=n + 70, generator=seeded())
    },
    "more than there is": lambda n: {"sampler": tud.RandomSampler(range(n), num_samples=2 * n + 1)},
    "subset": lambda n: {"sampler": tud.SubsetRandomSampler(range(1, n))},
    "weighted": lambda n: {"sampler": tud.WeightedRandomSampler([1.0 + i for i in range(n)], n + 2)},
    "weighted, once": lambda n: {
        "sampler": tud.WeightedRandomSampler([1.0 + i for i in range(n)], n, replacement=False, generator=seeded())
    },
    "user's": lambda n: {"sampler": Shuffled(n)},
    "no batches": lambda _: {"batch_size": None, "shuffle": True},
    "batch sampler": lambda n: {
        "batch_sampler": tud.BatchSampler(tud.RandomSampler(range(n)), 3, drop_last=False),
        "batch_size": 1,
        "drop_last": False,
    },
    "texts": lambda n: {"sampler": [str(i) for i in range(n)]},
    "stateful": lambda n: {"sampler": Counting(n)},
    "stateful, no batches": lambda n: {"sampler": Counting(n), "batch_size": None, "drop_last": False},
    "stateful iterator": lambda n: {"sampler": HasCountingIterator(n), "batch_size": None, "drop_last": False},
}
ACT_AT_THE_END = {
    "generator",
    "used generator",
    "sampler with a generator",
    "two generators",
    "drawn as it goes",
    "stateful",
    "stateful, no batches",
}
"""Samplers that do something when they are asked in vain, so that a loop which does not ask has another next epoch. A
state of the last batch takes for granted that the loop will ask."""


@pytest.mark.parametrize("name", LOADERS)
@TRIALS
@given(
    length=st.integers(2, 30),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    cuts=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    sees_end=st.booleans(),
)
@example(length=7, batch_size=3, drop_last=False, cuts=[3, 0, 3], sees_end=False)
@example(length=6, batch_size=3, drop_last=True, cuts=[2, 2, 1], sees_end=True)
def test_a_run_goes_on_where_it_was_saved(
    name: str, length: int, batch_size: int, drop_last: bool, cuts: list[int], sees_end: bool
) -> None:
    """From any place, as often as one likes: the order, the random numbers, and all epochs that follow."""
    if batch_size > length:
        batch_size = length

    def make() -> Any:
        options = {"batch_size": batch_size, "drop_last": drop_last} | LOADERS[name](length)
        if options["batch_size"] is None:
            options["drop_last"] = False
        return af.DataLoader(Noisy(length), collate_fn=as_is, **options)

    check_lives(make, cuts, sees_end=sees_end or name in ACT_AT_THE_END)


# -- iterable datasets ---------------------------------------------------------------------------------------------


class Resumable(tud.IterableDataset[Any]):
    """A dataset with a state, which is not deterministic without it, and counts its epochs."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch, self.next = length, 0, 0

    def __iter__(self) -> Iterator[Any]:
        info = tud.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        if self.next == 0:
            self.epoch += 1
        while (index := first + self.next * step) < self.length:
            self.next += 1
            yield index, self.epoch
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.next = state["epoch"], state["next"]


class OwnIterator(tud.IterableDataset[Any]):
    """A dataset that is its own iterator, and begins anew when it is asked for one."""

    def __init__(self, length: int) -> None:
        self.length, self.next = length, 0

    def __iter__(self) -> Iterator[Any]:
        self.next = 0
        return self

    def __next__(self) -> int:
        if self.next == self.length:
            raise StopIteration
        self.next += 1
        return self.next - 1

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class HasIterator(tud.IterableDataset[Any]):
    """A dataset whose iterator has the state; it has one, too, for all its epochs."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        counter = CountingIterator(self.length)
        counter.length += self.epoch
        return counter

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        # The iterator that is made next is one of the same epoch.
        self.epoch = state["epoch"] - 1


STREAMS: dict[str, Callable[[int], Any]] = {
    "plain": NoisyStream,
    "stateful": Resumable,
    "its own iterator": OwnIterator,
    "stateful, and so is its iterator": HasIterator,
}


@pytest.mark.parametrize("name", STREAMS)
@TRIALS
@given(
    length=st.integers(1, 30),
    batch_size=st.one_of(st.none(), st.integers(1, 7)),
    drop_last=st.booleans(),
    cuts=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    sees_end=st.booleans(),
)
@example(length=7, batch_size=3, drop_last=False, cuts=[3, 0, 3], sees_end=False)
@example(length=6, batch_size=3, drop_last=True, cuts=[2, 2, 1], sees_end=True)
def test_an_iterable_goes_on_where_it_was_saved(
    name: str, length: int, batch_size: int | None, drop_last: bool, cuts: list[int], sees_end: bool
) -> None:
    """From its own state if it has one, else by making again what was delivered."""

    def make() -> Any:
        options = {"batch_size": min(batch_size or 99, length), "drop_last": drop_last} if batch_size else {}
        return af.DataLoader(STREAMS[name](length), collate_fn=as_is, **({"batch_size": None} | options))

    check_lives(make, cuts, sees_end=sees_end)


# -- when it is saved and loaded -----------------------------------------------------------------------------------


def loader_of(length: int = 10, **options: Any) -> Any:
    return af.DataLoader(Noisy(length), **({"batch_size": 3, "shuffle": True, "collate_fn": as_is} | options))


@pytest.fixture(autouse=True)
def a_known_beginning() -> Iterator[None]:
    """Seed the trainer, and put back what other tests had."""
    before = torch.get_rng_state()
    torch.manual_seed(1)
    yield
    torch.set_rng_state(before)


def test_a_state_from_before_the_first_iterator() -> None:
    """It is the beginning; asking for it changes nothing."""
    torch.rand(1000)
    before = torch.get_rng_state()
    loader = loader_of()
    state = saved(loader)
    assert torch.equal(torch.get_rng_state(), before)
    expected = epochs_of(loader, 2)
    torch.manual_seed(99)
    assert epochs_of(resumed(state), 2) == expected


def test_a_state_from_before_the_first_batch() -> None:
    """The epoch of the iterator that was made last has begun: its seed was drawn."""
    loader = loader_of()
    batches = iter(loader)
    torch.rand(1000)
    state = saved(loader)
    expected = [list(batches), *epochs_of(loader, 2)]
    torch.manual_seed(99)
    assert epochs_of(resumed(state), 3) == expected


def test_what_is_drawn_between_an_iterator_and_its_first_batch_counts() -> None:
    """A sampler draws when it is asked for its first index, and again from there."""
    loader = loader_of()
    batches = iter(loader)
    torch.rand(1000)
    next(batches)
    torch.rand(1000)
    state = saved(loader)
    expected = [list(batches), *epochs_of(loader, 2)]
    assert epochs_of(resumed(state), 3) == expected


@pytest.mark.parametrize("options", [{}, {"generator": True}, {"sampler": True}], ids=str)
def test_generators_are_put_where_they_were(options: dict[str, bool]) -> None:
    """What the training loop draws after a resume is what it would have drawn."""

    def make() -> tuple[Any, torch.Generator]:
        generator = seeded()
        chosen: dict[str, Any] = {"generator": generator} if "generator" in options else {}
        if "sampler" in options:
            chosen = {"shuffle": None, "sampler": tud.RandomSampler(range(10), generator=generator)}
        return loader_of(**chosen), generator

    loader, generator = make()
    take(loader, 2)
    torch.rand(5)
    torch.rand(7, generator=generator)
    state, states = saved(loader), (torch.get_rng_state(), generator.get_state())
    torch.manual_seed(99)
    again, other = make()
    again.load_state_dict(state)
    for _ in range(2):
        if options != {"generator": True}:  # then the loader never draws from the global one
            assert torch.equal(torch.get_rng_state(), states[0])
        if options:
            assert torch.equal(other.get_state(), states[1])
        iter(again)  # has the sampler give its first indices again, and leaves no trace


def test_a_validation_loader_does_not_turn_generators_back() -> None:
    """Its state was saved with that of the training loader, and is begun later."""

    def loop(training: Any, validation: Any, is_resumed: bool) -> Iterator[Any]:
        for epoch in range(1 if is_resumed else 0, 3):
            for step, batch in enumerate(training):
                yield batch, torch.rand(1).item()
                if epoch == 1 and step == 1 and not is_resumed:
                    states.extend([saved(training), saved(validation)])
                    yield "saved"
            yield list(validation), torch.rand(1).item()

    states: list[Any] = []
    found = list(loop(loader_of(), loader_of(7), False))
    torch.manual_seed(99)
    assert list(loop(resumed(states[0]), resumed(states[1], length=7), True)) == found[found.index("saved") + 1 :]


class Drawing:
    """A sampler that draws from a generator that others see, when it is started or with each index."""

    def __init__(self, draw: Callable[[], int], *, at_once: bool) -> None:
        self.draw, self.at_once = draw, at_once

    def __iter__(self) -> Iterator[int]:
        return iter([self.draw() for _ in range(10)]) if self.at_once else (self.draw() for _ in range(10))

    def __len__(self) -> int:
        return 10


DRAWS: dict[str, Callable[[], int]] = {
    "random": lambda: random.randrange(10),
    "numpy": lambda: int(np.random.randint(10)),
    "torch": lambda: int(torch.randint(10, ())),
}


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("name", DRAWS)
def test_a_sampler_of_the_users_draws_the_same_again(name: str, at_once: bool) -> None:
    """Wherever it draws from, as long as nobody draws from there while the sampler is at work."""

    def make() -> Any:
        return loader_of(shuffle=None, sampler=Drawing(DRAWS[name], at_once=at_once))

    loader = make()
    list(loader)
    batches = iter(loader)
    taken = [next(batches), next(batches)]
    text = json.dumps(loader.state_dict())
    expected = [list(batches), *epochs_of(loader, 2)]
    assert len(taken) + len(expected[0]) == len(loader)
    for seed in (5, 6):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        again = make()
        again.load_state_dict(json.loads(text))
        assert epochs_of(again, 3) == expected


def test_a_state_can_be_loaded_twice_and_saved_right_away() -> None:
    """What is loaded and not begun is what is saved."""
    loader = loader_of()
    take(loader, 2)
    state = saved(loader)
    rest = [*epochs_of(resumed(state), 3)]
    again = resumed(state)
    again.load_state_dict(saved(again))
    take(again, 1)
    again.load_state_dict(state)
    assert saved(again) == state
    for _ in range(3):
        iter(again)
    assert epochs_of(again, 3) == rest


def resumed(state: dict[str, Any], make: Make = loader_of, **options: Any) -> Any:
    """Return another loader that goes on from a state."""
    loader = make(**options)
    loader.load_state_dict(state)
    return loader


def test_a_loader_goes_back_to_a_state_of_its_own() -> None:
    """Within one process, with a generator that it was given, from the middle of a later epoch."""
    for options in ({}, {"generator": used_before()}):
        loader = loader_of(**options)
        take(loader, 2)
        state = saved(loader)
        expected = epochs_of(resumed(state, **({"generator": used_before()} if options else {})), 2)
        epochs_of(loader, 2)
        take(loader, 1)
        loader.load_state_dict(state)
        assert epochs_of(loader, 2) == expected


def test_what_was_loaded_does_not_change_with_its_owner() -> None:
    """A state that is changed after it was given away, or taken, changes nothing."""
    loader = loader_of()
    take(loader, 2)
    state = saved(loader)
    expected = list(resumed(state))
    again = resumed(state)
    state["step"] = 1
    again.state_dict()["random"].clear()
    assert list(again) == expected


def test_a_new_iterator_is_a_new_epoch_unless_a_state_was_loaded() -> None:
    """``break`` leaves an epoch, as in torch; the state still tells where it was left."""
    expected = epochs_of(loader_of(), 3)
    torch.manual_seed(1)
    loader = loader_of()
    assert take(loader, 2) == expected[0][:2]
    state = saved(loader)
    assert list(loader) == expected[1]
    assert saved(loader)["epoch"] == 2
    assert list(resumed(state)) == expected[0][2:]


def test_iterators_that_are_thrown_away_take_nothing() -> None:
    """Frameworks make one before they load a state, and another one after it."""
    expected = epochs_of(loader_of(), 2)
    torch.manual_seed(1)
    loader = loader_of()
    state = saved(loader) if take(loader, 3) else {}
    torch.manual_seed(5)
    again = loader_of()
    before = iter(again)
    again.load_state_dict(state)
    iter(again)
    assert [*before] == expected[0][3:]
    assert list(again) == expected[1]


def test_two_loaders_have_two_states() -> None:
    """What one of them does is not seen in the other's."""
    first, second = loader_of(), loader_of(12)
    taken = [next(batches) for batches in (iter(first), iter(second), iter(second))]
    states = saved(first), saved(second)
    assert [(s["epoch"], s["step"]) for s in states] == [(0, 1), (1, 1)]
    assert taken[0] not in list(resumed(states[0]))


def test_an_empty_state_is_no_state() -> None:
    """As in torchdata."""
    expected = epochs_of(loader_of(), 1)
    torch.manual_seed(1)
    assert epochs_of(resumed({}), 1) == expected


def test_a_loader_that_ends_on_its_own_error_goes_on_from_the_batch_that_failed() -> None:
    """It was not delivered."""

    class Failing(Noisy):
        is_broken = True

        def __getitem__(self, index: int) -> Any:
            if index == 7 and self.is_broken:
                raise ValueError("seven")
            return super().__getitem__(index)

    expected = list(af.DataLoader(Noisy(10), batch_size=3, collate_fn=as_is))
    torch.manual_seed(1)
    loader = af.DataLoader(Failing(10), batch_size=3, collate_fn=as_is)
    with pytest.raises(ValueError, match="seven"):
        list(loader)
    state = saved(loader)
    assert state["step"] == 2
    again = af.DataLoader(Noisy(10), batch_size=3, collate_fn=as_is)
    again.load_state_dict(state)
    assert list(again) == expected[2:]


def test_batches_that_vanish_are_over() -> None:
    """A step counts although nothing was left of it; so does the last one, of which nothing comes."""

    class Failing(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index in (2, 3, 8, 9):
                raise ValueError("not this one")
            return super().__getitem__(index)

    def make() -> Any:
        return af.DataLoader(Failing(10), batch_size=2, collate_fn=as_is, on_error="skip")

    expected = epochs_of(make(), 2)
    assert [len(epoch) for epoch in expected] == [3, 3]
    for number in range(4):
        torch.manual_seed(1)
        loader = make()
        first = take(loader, number)
        rest = epochs_of(resumed(saved(loader), make), 1)
        assert [*first, *rest[0]] == (expected[0] if number < 3 else [*expected[0], *expected[1]])


def test_a_copy_begins_anew_but_with_what_was_loaded() -> None:
    """Copies of a loader, and those that were sent elsewhere, have places of their own."""
    loader = loader_of()
    take(loader, 2)
    state = saved(loader)
    rest = list(resumed(state))
    copiers: list[Any] = [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))]  # noqa: S301
    for copier in copiers:
        assert list(copier(resumed(state))) == rest
    assert saved(copy.copy(loader))["step"] == 0


# -- seeds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [False, True])
def test_a_loop_that_seeds_each_epoch_goes_on(end: bool) -> None:
    """Its seed wins where an epoch begins; within an epoch, the state does."""

    def loop(loader: Any, first: int) -> Iterator[Any]:
        for epoch in range(first, 3):
            torch.manual_seed(100 + epoch)
            yield from loader

    expected = list(loop(loader_of(), 0))
    loader = loader_of()
    torch.manual_seed(100)
    taken = list(loader) if end else take(loader, 2)
    state = saved(loader)
    torch.manual_seed(5)
    again = loader_of()
    again.load_state_dict(state)
    assert taken + list(loop(again, 1 if end else 0)) == expected


def test_a_run_goes_on_after_a_large_model_was_made() -> None:
    """Torch's random numbers stand far from their seed; the state still is a few numbers."""
    torch.rand(3_000_000)
    expected = epochs_of(loader_of(), 3)
    torch.manual_seed(1)
    torch.rand(3_000_000)
    loader = loader_of()
    assert take(loader, 2) == expected[0][:2]
    assert [list(resumed(saved(loader))), *epochs_of(resumed(saved(loader)), 3)[1:]] == [expected[0][2:], *expected[1:]]


# -- what does not fit ---------------------------------------------------------------------------------------------


def mid_epoch(make: Make = loader_of, number: int = 2, **options: Any) -> dict[str, Any]:
    loader = make(**options)
    take(loader, number)
    return saved(loader)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "dataset": ({"length": 12}, r"saved with len\(dataset\)=10, this loader has 12"),
    "batch size": ({"batch_size": 2}, "saved with batch_size=3, this loader has 2"),
    "drop_last": ({"drop_last": True}, "saved with drop_last=False, this loader has True"),
    "order": ({"shuffle": False}, "saved with sampler='RandomSampler', this loader has 'SequentialSampler'"),
    "sampler": (
        {"shuffle": None, "sampler": tud.SubsetRandomSampler(range(9))},
        r"'SubsetRandomSampler'; the state was saved with len\(sampler\)=10, this loader has 9",
    ),
    "generator": ({"generator": seeded()}, "saved with generator=False, this loader has True"),
    "no batches": ({"batch_size": None}, "saved with batch_size=3, this loader has None"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_loader_is_refused_with_what_differs(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """All that differs is named; with ``strict=False`` it is warned of, and the run goes on."""
    change, words = CHANGES[name]
    state = mid_epoch()
    loader = loader_of(**change)
    with pytest.raises(af.StateMismatch, match=words) as caught:
        loader.load_state_dict(state)
    assert "strict=False" in caught.value.hint
    assert caught.value.differences
    assert isinstance(caught.value, ValueError)
    with caplog.at_level(logging.WARNING, "antifreeze"):
        loader.load_state_dict(state, strict=False)
    (record,) = caplog.records
    assert "What is lost: " in record.getMessage()
    assert 0 < len(list(loader)) < len(loader)


def test_a_refused_state_leaves_the_loader_as_it_was() -> None:
    """Somebody may catch the error and begin anew."""
    expected = epochs_of(loader_of(), 2)
    state = mid_epoch(batch_size=4)
    torch.manual_seed(1)
    loader = loader_of()
    with pytest.raises(af.StateMismatch):
        loader.load_state_dict(state)
    assert epochs_of(loader, 2) == expected


def test_another_batch_size_goes_on_after_as_many_samples(caplog: pytest.LogCaptureFixture) -> None:
    """If that is wished: what comes again is said, nothing is left out."""
    loader = loader_of(24, shuffle=False)
    first = [sample[0] for batch in take(loader, 3) for sample in batch]
    again = loader_of(24, shuffle=False, batch_size=5)
    again.load_state_dict(saved(loader), strict=False)
    assert "and 4 samples come again" in caplog.text
    rest = [sample[0] for batch in again for sample in batch]
    assert (first, rest) == (list(range(9)), list(range(5, 24)))


def test_another_seed_of_the_generator_does_not_matter() -> None:
    """A state puts generators where they were, whatever they were seeded with: the given one as well as torch's."""
    state = mid_epoch(generator=seeded(5))
    expected = epochs_of(resumed(state, generator=seeded(5)), 2)
    assert epochs_of(resumed(state, generator=seeded(6)), 2) == expected


def test_a_state_of_an_older_version_is_refused() -> None:
    """Its epochs had another order."""
    with pytest.raises(af.StateMismatch, match="version 1"):
        loader_of().load_state_dict(mid_epoch() | {"version": 1})


class Wild:
    """A sampler that nobody can repeat."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(range(100), 100))

    def __len__(self) -> int:
        return 100


def test_a_sampler_that_gives_other_indices_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It is found out by the indices that were delivered before."""
    options: dict[str, Any] = {"length": 100, "shuffle": None, "sampler": Wild()}
    state = mid_epoch(**options)
    loader = resumed(state, **options)
    batches = iter(loader)
    for _ in range(2):  # asking once more is no way around it
        with pytest.raises(af.StateMismatch, match=r"Wild.*does not give the same indices again.*first 2 batches"):
            next(batches)
    loader.load_state_dict(state, strict=False)
    assert len(list(loader)) == len(loader) - 2
    assert "What is lost" in caplog.text


def test_indices_that_have_no_values_are_not_compared() -> None:
    """Whether two objects are the same cannot be told in another process."""

    class Index:
        def __init__(self, value: int) -> None:
            self.value = value

    class Values(Noisy):
        def __getitem__(self, index: Any) -> Any:
            return index.value

    def make(**_: Any) -> Any:
        return af.DataLoader(Values(10), sampler=[Index(i) for i in range(10)], batch_size=3, collate_fn=as_is)

    assert list(resumed(mid_epoch(make), make)) == [[6, 7, 8], [9]]


DAMAGED: dict[str, Any] = {
    "none": None,
    "a list": [1, 2],
    "another thing": {"model": 1},
    "no place": {"version": 1, "kind": "DataLoader", "epoch": 0},
    "no number": {"step": -1},
    "no text": {"epoch": "one"},
    "random": {"random": 5},
    "no seed": {"random": {"seed": "x", "resets": 0, "persistent": False, "now": {}}},
    "no generator": {"random": {"seed": 1, "resets": 0, "persistent": False, "began": {}, "now": {"torch": "abc"}}},
    "no seed of a generator": {"random": {"seed": 1, "resets": 0, "persistent": False, "now": {"torch": "seed x"}}},
    "a bomb": {
        "random": {
            "seed": 1,
            "resets": 0,
            "persistent": False,
            "now": {"torch": base64.urlsafe_b64encode(zlib.compress(bytes(1 << 20))).decode()},
        }
    },
    "missing steps": {"until": 5, "missing": [[0, 9]]},
    "another kind": {"kind": "StreamingDataLoader"},
    "from the future": {"version": 99},
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_state_is_refused(name: str) -> None:
    """With words, not with a KeyError."""
    state = DAMAGED[name]
    if isinstance(state, dict) and len(state) == 1 and "model" not in state:
        state = mid_epoch() | state
    for strict in (True, False):
        with pytest.raises(af.StateMismatch) as caught:
            loader_of().load_state_dict(state, strict=strict)
        assert caught.value.hint


def test_a_state_holds_nothing_but_numbers_and_names() -> None:
    """No path, no host, no user, whatever the dataset is called."""
    text = json.dumps(mid_epoch())
    assert "/" not in text
    assert set(json.loads(text)) == {"version", "kind", "epoch", "random", "loader", "step", "indices"}


def test_a_state_is_small_with_many_workers() -> None:
    """Sixteen shares, each of which has come far."""
    place = ShardPosition(tuple(ShardProgress(10**9, 2**32 - 1) for _ in range(16)), 16 * 10**9, 10**9)
    torch.rand(1)
    random = Drawn(2**63 - 1, 10**6, began={}, now={"generator": torch.get_rng_state().numpy().tobytes()})
    loader = af.DataLoader(NoisyStream(10), num_workers=16, batch_size=10**6)
    assert len(json.dumps(to_state(10**6, place, random, loader))) < 8192


def test_another_kind_of_dataset_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """If it is wished, the epoch begins anew."""
    state = mid_epoch()
    loader = af.DataLoader(NoisyStream(10), batch_size=3)
    with pytest.raises(af.StateMismatch, match="saved with dataset='map', this loader has 'iterable'"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, strict=False)
    assert "starts over" in caplog.text
    assert len(list(loader)) == 4


# -- ranks ---------------------------------------------------------------------------------------------------------


def rank_of(rank: int, ranks: int, batch_size: int, length: int = 48, **options: Any) -> Any:
    sampler = tud.DistributedSampler(range(length), ranks, rank, **options)  # type: ignore[arg-type,var-annotated]
    return af.DataLoader(range(length), sampler=sampler, batch_size=batch_size, collate_fn=as_is)


def global_steps(loaders: list[Any], epoch: int) -> list[set[int]]:
    for loader in loaders:
        loader.sampler.set_epoch(epoch)
    return [set(itertools.chain(*batches)) for batches in zip(*loaders, strict=True)]


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 12), (2, 6), (3, 4), (4, 3), (12, 1)])
def test_another_number_of_ranks_goes_on_with_the_same_steps(ranks: int, batch_size: int) -> None:
    """As long as all ranks together take as many samples in a step. Any rank's state will do."""
    whole = [global_steps([rank_of(r, 2, 6) for r in range(2)], epoch) for epoch in range(3)]
    before = [rank_of(r, 2, 6) for r in range(2)]
    global_steps(before, 0)
    for loader in before:
        loader.sampler.set_epoch(1)
        take(loader, 2)
    states = [saved(loader) for loader in before]
    after = [rank_of(r, ranks, batch_size) for r in range(ranks)]
    for loader in after:
        loader.load_state_dict(states[0])
    assert global_steps(after, 1) == whole[1][2:]
    assert global_steps(after, 2) == whole[2]


def test_ranks_that_take_another_number_of_samples_are_refused() -> None:
    """Steps would not be the same. Both numbers are named if both have changed."""
    state = mid_epoch(lambda: rank_of(0, 2, 6))
    with pytest.raises(af.StateMismatch, match=r"sampler\.num_replicas=2, this loader has 3"):
        rank_of(0, 3, 6).load_state_dict(state)
    with pytest.raises(af.StateMismatch, match=r"batch_size=6, this loader has 5.*num_replicas=2, this loader has 3"):
        rank_of(0, 3, 5).load_state_dict(state)
    with pytest.raises(af.StateMismatch, match=r"sampler\.seed=0, this loader has 9"):
        rank_of(0, 2, 6, seed=9).load_state_dict(state)


def test_a_sampler_with_a_state_goes_on_with_another_number_of_ranks() -> None:
    """Its state counts samples of one rank, so it is not for another number of them: its indices are drawn again."""

    class Stateful(tud.DistributedSampler[Any]):
        given = 0

        def __iter__(self) -> Iterator[Any]:
            first, self.given = self.given, 0
            for self.given, index in enumerate(itertools.islice(super().__iter__(), first, None), first + 1):
                yield index

        def state_dict(self) -> Any:
            return {"given": self.given}

        def load_state_dict(self, state: Any) -> None:
            self.given = state["given"]

    def make(rank: int, ranks: int, batch_size: int) -> Any:
        sampler = Stateful(Noisy(48), ranks, rank)
        return af.DataLoader(range(48), sampler=sampler, batch_size=batch_size, collate_fn=as_is)

    before = make(0, 2, 6)
    whole = list(before)
    before = make(0, 2, 6)
    assert take(before, 2) == whole[:2]
    again = make(0, 2, 6)
    again.load_state_dict(saved(before))
    assert list(again) == whole[2:]
    everything = list(make(0, 1, 12))
    alone = make(0, 1, 12)
    alone.load_state_dict(saved(before))
    assert list(alone) == everything[2:]


def test_an_epoch_that_the_sampler_was_not_told_is_refused() -> None:
    """``set_epoch`` is for the loop to call; without it the samples would be those of another epoch."""
    loader = rank_of(0, 2, 6)
    loader.sampler.set_epoch(4)
    take(loader, 2)
    again = rank_of(0, 2, 6)
    again.load_state_dict(saved(loader))
    with pytest.raises(af.StateMismatch, match=r"sampler\.epoch=4, this loader has 0") as caught:
        next(iter(again))
    assert "set_epoch(4)" in caught.value.hint
    again.sampler.set_epoch(4)
    assert len(list(again)) == 2


# -- datasets with a state of their own ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 4, 5])
def test_a_sampler_may_be_told_its_epoch_after_an_iterator_was_made(number: int) -> None:
    """Lightning does so when it resumes."""
    loader = rank_of(1, 2, 6)
    loader.sampler.set_epoch(3)
    batches = iter(loader)
    taken = list(itertools.islice(batches, number))  # the fifth is not there: the loop has seen the end
    state = saved(loader)
    assert len(taken) == min(number, 4)
    if len(taken) < 4:
        expected = list(batches)
    else:
        loader.sampler.set_epoch(4)
        expected = list(loader)
    again = resumed(state, lambda: rank_of(1, 2, 6))
    batches = iter(again)
    again.sampler.set_epoch(3 if number < 4 else 4)
    assert list(batches) == expected


def test_a_dataset_with_a_state_is_asked_for_it() -> None:
    """What it returns is kept as it is: whether JSON can hold it is its own affair."""

    class Worn(Noisy):
        uses = 0

        def __getitem__(self, index: int) -> Any:
            self.uses += 1
            return index, self.uses

        def state_dict(self) -> Any:
            return {"uses": torch.tensor(self.uses)}

        def load_state_dict(self, state: Any) -> None:
            self.uses = int(state["uses"])

    def make(**options: Any) -> Any:
        return af.DataLoader(Worn(10), batch_size=3, collate_fn=as_is, **options)

    expected = list(make())
    loader = make()
    assert take(loader, 2) == expected[:2]
    state = loader.state_dict()
    assert state["dataset_state"] == {"uses": 6}
    assert isinstance(state["dataset_state"]["uses"], torch.Tensor)
    again = make()
    again.load_state_dict(state)
    assert again.dataset.uses == 0
    assert list(again) == expected[2:]


# -- torchdata -----------------------------------------------------------------------------------------------------

STATEFUL_DATALOADER = """
dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout worker_init_fn
multiprocessing_context generator prefetch_factor persistent_workers pin_memory_device in_order snapshot_every_n_steps
"""


def test_all_arguments_of_torchdatas_loader_are_taken() -> None:
    """In its order, as far as they may be given by position."""
    parameters = inspect.signature(af.DataLoader.__init__).parameters
    names = STATEFUL_DATALOADER.split()
    assert set(names) <= set(parameters)
    assert list(parameters)[1:14] == names[:13]


@pytest.mark.parametrize("steps", [None, 1, 7, 10**6])
def test_a_state_is_exact_at_every_step_whatever_the_interval(steps: int | None) -> None:
    """torchdata makes again what was delivered since the last snapshot; here nothing is made again."""
    expected = list(loader_of())
    torch.manual_seed(1)
    loader = loader_of(snapshot_every_n_steps=steps)
    assert loader.snapshot_every_n_steps == steps
    taken = take(loader, 2)
    assert [*taken, *resumed(saved(loader), snapshot_every_n_steps=steps)] == expected


@pytest.mark.parametrize("steps", [0, -1, 2.5, "1", True])
def test_an_interval_that_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(af.ConfigError, match=r"snapshot_every_n_steps: expected an integer >= 1, got "):
        loader_of(snapshot_every_n_steps=steps)
