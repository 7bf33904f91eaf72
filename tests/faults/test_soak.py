"""Random datasets, random settings, random ends: always the same rows, in the same order, and nothing left behind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antifreeze import StreamingDataLoader, StreamingDataset
from conftest import more, write


def trial(seed: int, folder: Path) -> None:
    """Compare an epoch read with random settings with the same epoch read in the calling thread."""
    rng = random.Random(seed)  # noqa: S311
    sizes = [rng.randrange(1, 400) for _ in range(rng.randrange(1, 7))]
    data = write(folder / str(seed), sizes, group_rows=rng.randrange(1, 200))
    dataset = StreamingDataset(data.path, format=rng.choice(["torch", "numpy"]), shuffle=rng.random() < 0.7, seed=seed)
    limit: dict[str, Any] = {"memory_limit": rng.choice(["1MB", "8MB", "100MB"])} if rng.random() < 0.5 else {}
    batch_size = rng.choice([1, 3, 8, 64, 1000])
    expected = data.check_all(StreamingDataLoader(dataset, batch_size=batch_size, **limit))
    for _ in range(4):
        loader = StreamingDataLoader(
            dataset,
            batch_size=rng.choice([1, 3, 8, 64, 1000]),
            num_workers=rng.randrange(1, 6),
            prefetch_factor=rng.randrange(1, 4),
            **limit,
        )
        stop = rng.choice([None, 1, 2, 5])
        kept = []
        for step, batch in enumerate(loader, start=1):
            kept.append(batch)
            if step == stop:
                break
        numbers = [i for batch in kept for i in data.check(batch)]
        assert numbers == expected[: len(numbers)], f"seed {seed}"
        assert stop is not None or len(numbers) == data.num_rows, f"seed {seed}"
        for batch in kept:
            np.asarray(batch["ids"])[...] = -1


@pytest.mark.parametrize("seed", [*range(4), *more(*range(4, 10))])
def test_a_disturbed_epoch_is_the_undisturbed_one(seed: int, tmp_path: Path) -> None:
    """Ten of what the soak does a thousand times."""
    trial(seed, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_a_thousand_disturbed_epochs_are_the_undisturbed_ones(seed: int, tmp_path: Path) -> None:
    """The seed of each trial is in its name."""
    trial(seed, tmp_path)
