"""Ctrl-C may come at any line. Who goes on with the same iterator, as people do in notebooks, misses nothing."""

from __future__ import annotations

import linecache
import random
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from worker_datasets import plain
from worker_engines import ENGINES, make, undisturbed

import antifreeze as af

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


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 100))])
def test_an_interrupt_at_any_line_loses_nothing(engine: str, persistent: bool, seed: int) -> None:
    """In two epochs, the second of which may have the workers of the first."""
    rng, interrupts = random.Random(seed), 0  # noqa: S311
    loader = make(engine, persistent_workers=persistent)
    for expected in undisturbed(engine, 2):
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
    assert interrupts <= 2
