"""Ctrl-C may come at any line. Who goes on with the same iterator, as people do in notebooks, misses nothing."""

from __future__ import annotations

import linecache
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from worker_datasets import plain
from worker_engines import ENGINES, make, undisturbed

import antifreeze as af
from conftest import more, write

ROOT = str(Path(af.__file__).parent)
DRAWING = {"_sources.py", "_indices.py", "_cut.py", "_rows.py"}
"""Where what is drawn from a sampler or a generator of the user's is held by nothing but a frame."""
ENTERED = ("with", "finally", "except", "return", "yield", "for", "while")
"""At these, tracing raises where a signal cannot: between a lock and what gives it back."""


def interrupted(iterator: Any, line: int) -> Any:
    """Return the next batch, or raise KeyboardInterrupt at the n-th line of ours that leads to it."""
    left = line

    def at_line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" and left >= 0:
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            left -= not text.startswith(ENTERED)
            if left < 0:
                raise KeyboardInterrupt
        return at_line

    def at_call(frame: FrameType, _event: str, _: Any) -> Any:
        path = Path(frame.f_code.co_filename)
        ours = str(path).startswith(ROOT) and path.name not in DRAWING and frame.f_code.co_name != "_fill"
        return at_line if ours and left >= 0 else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        return next(iterator)
    finally:
        sys.settrace(before)


def check(loader: Any, undisturbed: list[list[Any]], plain: Callable[[Any], Any], seed: int) -> None:
    """Interrupt each epoch once, somewhere, and go on."""
    rng, interrupts = random.Random(seed), 0  # noqa: S311
    for expected in undisturbed:
        iterator, found = iter(loader), []
        place, line = rng.randint(1, len(expected) - 1), int(10 ** rng.uniform(0, 3))
        while True:
            try:
                batch = interrupted(iterator, line) if len(found) == place else next(iterator)
            except KeyboardInterrupt:
                interrupts += 1
                place = -1
            except StopIteration:
                break
            else:
                found.append(plain(batch))
        assert found == expected
    assert interrupts <= len(undisturbed)


SEEDS = [0, 1, *more(*range(2, 5)), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 100))]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupt_at_any_line_loses_nothing(engine: str, persistent: bool, seed: int) -> None:
    """In two epochs, the second of which may have the workers of the first."""
    check(
        make(engine, persistent_workers=persistent), undisturbed(engine, 2, persistent_workers=persistent), plain, seed
    )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_interrupt_while_rows_are_decoded_loses_nothing(num_workers: int, seed: int, tmp_path: Path) -> None:
    """Where no worker process takes part."""
    write(tmp_path, [40, 37, 50], group_rows=7)
    dataset = af.StreamingDataset(tmp_path, format="numpy", shuffle=True, seed=seed)

    def numbers(batch: Any) -> Any:
        return batch["n"].tolist()

    def make_loader() -> Any:
        return af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers)

    loader = make_loader()
    check(make_loader(), [[numbers(batch) for batch in loader] for _ in range(2)], numbers, seed)
