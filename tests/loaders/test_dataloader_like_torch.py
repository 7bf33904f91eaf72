"""The trainer's random generators advance exactly as torch's loader advances them, so every epoch has torch's order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.utils.data as tud
from hypothesis import given, settings
from hypothesis import strategies as st

import antifreeze as af

sys.path.insert(0, str(Path(__file__).parent))
import like_torch
from like_torch import LOADERS, OPS, Op, clean_process, run

# Workers get the classes of these modules by value, so they import neither them nor pytest.
cloudpickle.register_pickle_by_value(like_torch)

NO_WORKERS = settings(max_examples=3 * settings().max_examples)
WITH_WORKERS = settings(max_examples=max(12, settings().max_examples // 50))

names = st.sampled_from(sorted(LOADERS))
ops = st.builds(Op, st.sampled_from(OPS), st.integers(0, 1), st.integers(0, 6))


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Callable[..., Any]]:
    """A process in which torch's loader forks its workers."""
    with clean_process() as call:
        yield call


@pytest.fixture(scope="module", autouse=True)
def the_workers_come_quickly(the_nursery_stays: None) -> None:
    """One process imports torch, once."""


def check(program: list[Op], expected: list[Any], found: list[Any]) -> None:
    for step, (one, other) in enumerate(zip(expected, json.loads(json.dumps(found)), strict=True)):
        assert one == other, f"after {program[:step]}"


@NO_WORKERS
@given(st.tuples(names, names), st.lists(ops, min_size=1, max_size=12))
def test_a_program_runs_as_with_torch(loaders: tuple[str, str], program: list[Op]) -> None:
    """The same indices and the same states of all generators, after every step."""
    options = {"num_workers": 0}
    expected = json.loads(json.dumps(run("torch", loaders, program, options)))
    check(program, expected, run("ours", loaders, program, options))


@WITH_WORKERS
@given(
    st.tuples(names, names),
    st.lists(ops, min_size=1, max_size=6),
    st.sampled_from(
        [
            {"num_workers": 1},
            {"num_workers": 2},
            {"num_workers": 2, "prefetch_factor": 3},
            {"num_workers": 2, "persistent_workers": True},
            {"num_workers": 3, "prefetch_factor": 1},
        ]
    ),
)
def test_a_program_runs_as_with_torch_and_workers(
    elsewhere: Callable[..., Any], loaders: tuple[str, str], program: list[Op], options: dict[str, Any]
) -> None:
    """How far a sampler is ahead of what is delivered can be seen, and is the same too."""
    check(program, elsewhere("torch", loaders, program, options), run("ours", loaders, program, options))


SCRIPT = [
    Op("iter"),
    Op("draw"),
    Op("next", number=1),
    Op("draw", number=1),
    Op("next", number=3),
    Op("next", number=3),
    Op("iter"),
    Op("drop"),
    Op("epoch"),
]
OFTEN = ["shuffle", "shuffle, generator", "with replacement", "drawn when started", "user's batch sampler", "iterable"]


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("name", OFTEN)
def test_what_scripts_do_gives_what_torch_gives_with_workers(
    elsewhere: Callable[..., Any], name: str, is_persistent: bool
) -> None:
    """While the training loop draws, with an iterator that is made and thrown away."""
    options, loaders = {"num_workers": 1, "persistent_workers": is_persistent}, (name, "in order")
    check(SCRIPT, elsewhere("torch", loaders, SCRIPT, options), run("ours", loaders, SCRIPT, options))


def test_no_process_is_started_by_an_iterator_that_is_thrown_away() -> None:
    """Although it draws."""

    class Untouchable:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> int:
            return index

        def __reduce__(self) -> Any:
            raise AssertionError("a worker was to be started")

    torch.manual_seed(1)
    before = torch.get_rng_state()
    batches = iter(af.DataLoader(Untouchable(), shuffle=True, num_workers=2))  # type: ignore[arg-type]
    after = torch.get_rng_state()
    del batches
    assert not torch.equal(before, after)
    torch.manual_seed(1)
    torch.empty((), dtype=torch.int64).random_()
    next(iter(tud.RandomSampler(range(10))))
    assert torch.equal(torch.get_rng_state(), after)


def test_a_sampler_that_raises_loses_no_batch() -> None:
    """With workers it is asked before a batch is handed over."""

    def broken() -> Iterator[int]:
        yield from range(5)
        raise ValueError("no more")

    class Broken:
        def __iter__(self) -> Iterator[int]:
            return broken()

    loader = af.DataLoader(range(10), sampler=Broken(), num_workers=1, timeout=like_torch.PATIENCE_S)  # type: ignore[arg-type]
    batches = iter(loader)
    found = []
    errors = 0
    for _ in range(7):
        try:
            found += [int(x) for x in next(batches, [])]
        except ValueError:
            errors += 1
    assert (found, errors) == (list(range(5)), 1)
