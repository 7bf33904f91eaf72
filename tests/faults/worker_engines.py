"""The three ways in which user code reaches worker processes, each with a fault in it, and what it gives without."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset
from worker_datasets import BATCH_SIZE, NO_FAULT, NUM_SAMPLES, Collate, Fault, Init, Numbers, Share, Transform, plain

import antifreeze as af
from conftest import write

ENGINES = ("map", "iterable", "streaming")


class AsIterable(IterableDataset):  # type: ignore[type-arg]
    """An iterable dataset that becomes an object of another class, one without torch, on its way to a worker."""

    def __init__(self, kind: Any, *made_of: Any) -> None:
        self.kind, self.made_of = kind, made_of

    def __reduce__(self) -> Any:
        return self.kind, self.made_of

    def __iter__(self) -> Iterator[Any]:
        return iter(self.kind(*self.made_of))


@functools.cache
def _folder(num_samples: int) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory(prefix="antifreeze-test-", ignore_cleanup_errors=True)
    write(Path(folder.name) / "data", [num_samples // 2, num_samples - num_samples // 2], group_rows=7)
    return folder, Path(folder.name) / "data"


def make(engine: str, fault: Fault = NO_FAULT, **options: Any) -> Any:
    """Return a loader with a fault in the user's code."""
    num_samples, delay_s = options.pop("num_samples", NUM_SAMPLES), options.pop("delay_s", 0.0)
    options = {"batch_size": BATCH_SIZE, "num_workers": 2, "collate_fn": Collate(fault)} | options
    if engine == "streaming":
        transform = Transform(fault, delay_s)
        dataset = af.StreamingDataset(_folder(num_samples)[1], format="numpy", seed=7, transform=transform)
        return af.StreamingDataLoader(dataset, **options)
    if fault.moment == "init":
        options["worker_init_fn"] = Init(fault)
    options["generator"] = torch.Generator().manual_seed(7)
    if engine == "iterable":
        return af.DataLoader(AsIterable(Share, fault, num_samples, delay_s), **options)
    return af.DataLoader(Numbers(fault, num_samples, delay_s), **options)


@functools.cache
def undisturbed(engine: str, epochs: int = 1, **options: Any) -> list[list[tuple[int, bytes]]]:
    """Return the batches of each epoch without any fault."""
    # The shards of an iterable depend on how many there are; and workers that stay keep the seed of the first epoch.
    if engine != "iterable" and not options.get("persistent_workers"):
        options["num_workers"] = 0
    loader = make(engine, **options)
    return [[plain(batch) for batch in loader] for _ in range(epochs)]
