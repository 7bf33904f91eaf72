"""Hugging Face datasets, streaming from the Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

import datasets
from torch.utils.data import DataLoader

from cases._decode import Batch, arrays, tensors

SHUFFLE_BUFFER = 10_000

# It sleeps for seconds when it closes a file, against a hang at the interpreter's exit. We do not wait for that exit.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0


def stream(data_dir: Path, shuffle: bool) -> datasets.IterableDataset:
    files = sorted(str(path) for path in data_dir.glob("*.parquet"))
    dataset = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return dataset.shuffle(seed=0, buffer_size=SHUFFLE_BUFFER) if shuffle else dataset


def torch_format(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """As its guide shows; `.batch(n)` in the workers is 1.5 to 3 times faster than collating rows."""
    dataset = stream(data_dir, shuffle).with_format("torch").batch(batch_size)
    return DataLoader(dataset, batch_size=None, num_workers=2)


def arrow_format(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Arrow tables, turned into tensors by hand: no rows as Python objects. Tried: 2 workers, not faster."""
    for table in stream(data_dir, shuffle).with_format("arrow").iter(batch_size):
        yield tensors(arrays(table.combine_chunks().to_batches()[0]))
