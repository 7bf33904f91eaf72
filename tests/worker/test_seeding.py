"""Random numbers that belong to the step."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.random.mtrand import get_bit_generator, set_bit_generator

from antifreeze.core import step_seed
from antifreeze.worker import _seeding
from antifreeze.worker._seeding import seed_now, seeded


def draw() -> list[float]:
    """Return numbers of all three generators."""
    return [random.random(), random.gauss(0, 1), *np.random.rand(2), np.random.randn(), *torch.rand(2), *torch.randn(1)]  # noqa: S311


@pytest.fixture(autouse=True)
def generators_are_put_back() -> Iterator[None]:
    """Leave the generators to other tests as they were."""
    generator, states = get_bit_generator(), (random.getstate(), np.random.get_state(), torch.get_rng_state())
    yield
    set_bit_generator(generator)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def numbers_of(function: Callable[[], Any]) -> list[float]:
    """Return what is drawn after a function, and leave the generators where they were before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    function()
    drawn = draw()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return drawn


def seed_by_hand(value: int) -> None:
    np.random.seed(value >> 31)
    words = np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    random.setstate((3, (*words[312:], *words[:312], 624), None))
    torch.manual_seed(value)


@given(seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**31), step=st.integers(0, 2**31))
def test_both_ways_give_the_numbers_of_seeding_by_hand(seed: int, epoch: int, step: int) -> None:
    """A batch is the same in the trainer's process and in a worker."""
    with seeded(seed, epoch, step):
        inside = draw()
    seed_now(seed, epoch, step)

    assert inside == draw()
    assert inside == numbers_of(lambda: seed_by_hand(step_seed(seed=seed, epoch=epoch, step=step)))


def test_what_is_not_found_in_memory_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build of Python or NumPy may lay its words out otherwise: the same numbers, and no trace."""
    with seeded(1, 2, 3):
        expected = draw()
    np.random.randn()  # leaves the second of two normal numbers behind
    before = random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()
    monkeypatch.setattr(_seeding, "_memories", None)
    with seeded(1, 2, 3):
        assert draw() == expected
    assert random.getstate() == before[0]
    np.testing.assert_equal(np.random.get_state(legacy=False), before[1])
    assert torch.equal(torch.get_rng_state(), before[2])


def test_the_words_are_found_in_memory() -> None:
    """On the platforms that the tests run on: else a batch without workers would cost twice as much."""
    assert _seeding._memories is not None


def test_libraries_do_not_toss_the_same_coins() -> None:
    """A flip that is decided with one must not follow from a flip that is decided with another."""
    tosses = []
    for step in range(200):
        with seeded(0, 0, step):
            tosses.append([random.getrandbits(1), int(np.random.randint(2)), int(torch.randint(2, ()))])
    for one, other in itertools.combinations(zip(*tosses, strict=True), 2):
        assert 60 < sum(a == b for a, b in zip(one, other, strict=True)) < 140


def test_numbers_of_python_are_even() -> None:
    """Its words are those of NumPy in another order."""
    with seeded(0, 0, 1):
        drawn = [random.random() for _ in range(20_000)]  # noqa: S311
        beside = np.random.rand(20_000)
    assert abs(np.mean(drawn) - 0.5) < 0.01
    assert abs(np.corrcoef(drawn, beside)[0, 1]) < 0.03
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.03


def test_steps_differ() -> None:
    """Else every batch would see the same augmentation."""
    drawn = [
        tuple(numbers_of(lambda place=place: seed_now(*place)))
        for place in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]

    assert len(set(drawn)) == 4


USES: list[Callable[[], Any]] = [
    lambda: None,
    draw,
    lambda: np.random.randn(3),
    lambda: np.random.rand(1000),
    lambda: seed_by_hand(5),
    lambda: np.random.set_state(np.random.RandomState(3).get_state()),
    lambda: set_bit_generator(np.random.PCG64(3)),
    lambda: set_bit_generator(np.random.MT19937(3)),
    lambda: set_bit_generator(get_bit_generator()),
]


@pytest.mark.parametrize("inside", USES)
@pytest.mark.parametrize("before", USES)
def test_the_block_leaves_no_trace(before: Callable[[], Any], inside: Callable[[], Any]) -> None:
    """Whatever stood there before, and whatever user code does inside: the trainer's own numbers go on unchanged."""
    seed_by_hand(1)
    before()
    generator = get_bit_generator()
    expected = np.random.get_state(legacy=False)
    rest = random.getstate(), torch.get_rng_state()
    with seeded(0, 0, 0):
        inside()

    assert get_bit_generator() is generator
    assert str(np.random.get_state(legacy=False)) == str(expected)
    np.testing.assert_equal(np.random.get_state(legacy=False), expected)
    assert random.getstate() == rest[0]
    assert torch.equal(torch.get_rng_state(), rest[1])


@given(moves=st.lists(st.sampled_from(["rand", "randn", "randint", "seeded", "nested"]), max_size=30))
def test_numbers_go_on_as_if_there_had_been_no_block(moves: list[str]) -> None:
    """At every point of the generator's cycle, also between the two normal numbers that are drawn at once."""
    alone = np.random.RandomState(7)
    np.random.seed(7)
    for move in moves:
        if move == "rand":
            assert np.random.rand() == alone.rand()
        elif move == "randn":
            assert np.random.randn() == alone.randn()
        elif move == "randint":
            assert np.random.randint(0, 1000, 311).tolist() == alone.randint(0, 1000, 311).tolist()
        else:
            with seeded(0, 0, 1):
                first = np.random.randn()
                if move == "nested":
                    with seeded(0, 0, 2):
                        np.random.randn(5)
                second = np.random.randn()
            with seeded(0, 0, 1):
                assert [first, second] == np.random.randn(2).tolist()
    assert np.random.randn(3).tolist() == alone.randn(3).tolist()


def test_an_error_inside_is_passed_on_and_leaves_no_trace() -> None:
    """User code may raise anything."""
    seed_by_hand(1)
    expected = numbers_of(lambda: None)

    def fail() -> None:
        with seeded(0, 0, 0):
            draw()
            sys.exit()

    with pytest.raises(SystemExit):
        fail()

    assert draw() == expected


def test_another_kind_of_generator_gives_way_for_the_block_only() -> None:
    """NumPy's ``seed`` refuses it, but the numbers inside must be those of the step."""
    with seeded(0, 0, 0):
        usual = draw()
    set_bit_generator(np.random.PCG64(3))
    mine = get_bit_generator()
    with seeded(0, 0, 0):
        assert draw() == usual
    assert get_bit_generator() is mine
    seed_now(0, 0, 0)
    assert draw() == usual


def test_a_block_inside_a_block_leaves_no_trace_in_it() -> None:
    """A dataset may iterate over a loader."""
    with seeded(1, 2, 3):
        expected = [draw(), draw()]
    with seeded(1, 2, 3):
        first = draw()
        with seeded(4, 5, 6):
            draw()
        assert [first, draw()] == expected


def test_blocks_in_threads_one_after_the_other() -> None:
    """The loader's user may iterate in another thread each time."""
    seed_by_hand(1)
    expected, seen = numbers_of(lambda: None), []

    def run() -> None:
        with seeded(0, 0, 0):
            seen.append(draw())

    for _ in range(3):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(10)

    assert seen[0] == seen[1] == seen[2]
    assert draw() == expected


def test_torch_is_not_imported_to_be_seeded() -> None:
    """It costs a second and 150 MB in each process."""
    code = (
        "import sys\n"
        "from antifreeze.worker._seeding import seed_now, seeded\n"
        "seed_now(0, 0, 0)\n"
        "with seeded(0, 0, 0): pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
