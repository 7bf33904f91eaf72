"""Peers that read their own format: MosaicML streaming, WebDataset, Grain ArrayRecord, Lance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from cases._decode import Batch, arrays, cut, scatter, tensors

Row = dict[str, Any]


def stack(rows: list[Row]) -> Batch:
    """Rows to one batch: one np.stack for the ids, one array for each number."""
    return {
        "ids": torch.from_numpy(np.stack([row["ids"] for row in rows])),
        "labels": torch.tensor([row["labels"] for row in rows]),
        "score": torch.tensor([row["score"] for row in rows], dtype=torch.float32),
        "tag": [row["tag"] for row in rows],
    }


def mosaic(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Tried: its StreamingDataLoader instead of torch's DataLoader; the same within the noise."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(data_dir), shuffle=shuffle, batch_size=batch_size)
    return DataLoader(dataset, batch_size=batch_size, num_workers=2, collate_fn=stack)


def webdataset_row(sample: Row) -> Row:
    return {"ids": np.frombuffer(sample["ids"], np.int32), **json.loads(sample["json"])}


def webdataset(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Tried: `.decode()` with a handler for the ids; a plain `.map` takes 5 to 15 % less CPU."""
    import webdataset as wds

    shards = sorted(str(path) for path in data_dir.glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=100 if shuffle else False, seed=0, empty_check=False)
    if shuffle:
        dataset = dataset.shuffle(5_000)
    dataset = dataset.map(webdataset_row).batched(batch_size, collation_fn=stack)
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def grain_record(record: bytes) -> Row:
    """The layout that `convert.write_arrayrecord` wrote."""
    return {
        "labels": int.from_bytes(record[:8], "little", signed=True),
        "score": np.frombuffer(record, np.float32, 1, offset=8)[0],
        "ids": np.frombuffer(record, np.int32, 1024, offset=12),
        "tag": record[12 + 4096 :].decode(),
    }


def grain_stack(rows: list[Row]) -> Row:
    """As `stack`, in NumPy: Grain's workers hand over NumPy arrays in shared memory."""
    return {
        "ids": np.stack([row["ids"] for row in rows]),
        "labels": np.array([row["labels"] for row in rows], np.int64),
        "score": np.array([row["score"] for row in rows], np.float32),
        "tag": np.array([row["tag"] for row in rows]),
    }


def grain_tensors(batches: Iterable[Row]) -> Iterator[Batch]:
    for batch in batches:
        yield {
            name: value.tolist() if value.dtype.kind in "UO" else torch.from_numpy(value)
            for name, value in batch.items()
        }


def grain_arrayrecord(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    import grain

    files = sorted(str(path) for path in data_dir.glob("*.array_record"))
    dataset = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
    if shuffle:
        dataset = dataset.shuffle(seed=0)
    read = grain.ReadOptions(num_threads=4, prefetch_buffer_size=256)
    batches = dataset.map(grain_record).to_iter_dataset(read).batch(batch_size, batch_fn=grain_stack)
    return grain_tensors(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))


def grain_parquet(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Grain's own (experimental) Parquet reader; reads Parquet, not its own format, but shares the code above.

    `cycle_length=1`: its default opens all files at once and holds a row group of each in memory.
    """
    import grain
    from grain.experimental import InterleaveIterDataset, ParquetIterDataset, WindowShuffleIterDataset

    files = grain.MapDataset.source(sorted(str(path) for path in data_dir.glob("*.parquet")))
    if shuffle:
        files = files.shuffle(seed=0)
    dataset = InterleaveIterDataset(files.map(ParquetIterDataset), cycle_length=1)
    if shuffle:
        dataset = WindowShuffleIterDataset(dataset, window_size=10_000, seed=0)
    batches = dataset.batch(batch_size, batch_fn=grain_stack)
    return grain_tensors(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))


def lance_scan(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Scan of slices, cut in the consumer; shuffled, the fragments in random order and the same row window as ours.

    Tried: batches of 8 from the scanner, one Arrow stream call each: twice the CPU. `take` of random rows, measured
    once before at batch 256, had 6 % of the scan's rate.
    """
    import lance

    dataset = lance.dataset(str(data_dir / "data.lance"))
    rows = max(1, 1024 // batch_size) * batch_size
    generator = np.random.default_rng(0)
    fragments = dataset.get_fragments()
    if shuffle:
        fragments = [fragments[place] for place in generator.permutation(len(fragments))]
    scanner = dataset.scanner(batch_size=rows, batch_readahead=16, scan_in_order=True, fragments=fragments)
    slices: Iterator[dict[str, Any]] = (arrays(batch) for batch in scanner.to_batches())
    if shuffle:
        slices = scatter(slices, rows, generator)
    for part in slices:
        yield from cut(tensors(part), batch_size)
