"""litData: as its documentation shows it, with a hand-written collate, and in its optimized format."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
from litdata.streaming.item_loader import ParquetLoader

from cases._decode import Batch
from cases._own_format import stack


def loader(dataset: Any, batch_size: int, workers: int, **more: Any) -> Iterable[Batch]:
    """Spawn, as litData's documentation asks for with Parquet: Polars does not survive a fork."""
    context = {"multiprocessing_context": "spawn"} if workers else {}
    return litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=workers, **context, **more)


def documented(data_dir: Path, batch_size: int, shuffle: bool, workers: int) -> Iterable[Batch]:
    """Default collate: the ids become a list of 1,024 tensors [B]. All we change is the number of workers."""
    dataset = litdata.StreamingDataset(str(data_dir), item_loader=ParquetLoader(), shuffle=shuffle)
    return loader(dataset, batch_size, workers)


def documented_0(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return documented(data_dir, batch_size, shuffle, 0)


def documented_1(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return documented(data_dir, batch_size, shuffle, 1)


def documented_2(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return documented(data_dir, batch_size, shuffle, 2)


def collate(rows: list[dict[str, Any]]) -> Batch:
    """Ids to one int32 tensor [B, 1024]."""
    return {
        "ids": torch.from_numpy(np.array([row["ids"] for row in rows], np.int32)),
        "labels": torch.tensor([row["labels"] for row in rows]),
        "score": torch.tensor([row["score"] for row in rows], dtype=torch.float32),
        "tag": [row["tag"] for row in rows],
    }


def collated(data_dir: Path, batch_size: int, shuffle: bool, workers: int) -> Iterable[Batch]:
    """The expert's litData: `low_memory=False` (less than half the CPU of its default) and a collate by hand."""
    dataset = litdata.StreamingDataset(
        str(data_dir), item_loader=ParquetLoader(low_memory=False), shuffle=shuffle, drop_last=False
    )
    return loader(dataset, batch_size, workers, collate_fn=collate)


def collated_0(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return collated(data_dir, batch_size, shuffle, 0)


def collated_2(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return collated(data_dir, batch_size, shuffle, 2)


def optimized(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Its own format. Shuffled, its default decodes a window of neighbours for every row (35 times slower)."""
    more = {"batch_decode": False} if shuffle else {}
    dataset = litdata.StreamingDataset(str(data_dir), shuffle=shuffle, **more)
    return litdata.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=2, collate_fn=stack)
