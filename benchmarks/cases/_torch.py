"""torch DataLoader and torchdata.nodes around the hand-written decode, two workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from cases._decode import Batch, Unit, bundles, cut, tensors, units


class Stream(IterableDataset[Batch]):
    """Workers split the files; batches are made in the worker."""

    def __init__(self, share: list[Unit], batch_size: int, shuffle: bool, whole_bundles: bool) -> None:
        self.share, self.batch_size, self.shuffle, self.whole_bundles = share, batch_size, shuffle, whole_bundles

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        for bundle in bundles(self.share[number::workers], self.batch_size, self.shuffle, seed=number):
            if self.whole_bundles:
                yield bundle
            else:
                yield from cut(bundle, self.batch_size)


def inline(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """No loader at all: the hand-written decode in the training loop's own thread."""
    for bundle in bundles(units(data_dir), batch_size, shuffle):
        yield from cut(bundle, batch_size)


def dataloader(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """Tensors travel in shared memory. Tried: prefetch_factor 4 and 16; the default of 2 took the least CPU."""
    stream = Stream(units(data_dir), batch_size, shuffle, whole_bundles=False)
    return DataLoader(stream, batch_size=None, num_workers=2)


def dataloader_bundled(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """The same, but a worker hands over many batches at a time and the training process cuts them."""
    stream = Stream(units(data_dir), batch_size, shuffle, whole_bundles=True)
    for bundle in DataLoader(stream, batch_size=None, num_workers=2):
        yield from cut(bundle, batch_size)


class Columns(Dataset[Any]):
    """Map-style, all rows in memory; a whole batch is taken with one index (`__getitems__`)."""

    def __init__(self, data_dir: Path) -> None:
        table = pq.read_table(data_dir)
        self.columns = tensors({name: table[name].to_numpy().copy() for name in table.column_names})

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitems__(self, rows: list[int]) -> Batch:
        index = torch.tensor(rows)
        return {name: value[index] for name, value in self.columns.items()}


def whole(batch: Batch) -> Batch:
    """The batch is collated already."""
    return batch


def dataloader_map(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    return DataLoader(Columns(data_dir), batch_size=batch_size, shuffle=shuffle, num_workers=2, collate_fn=whole)


class Lanes:
    """Two decodes side by side; a thread takes whichever is idle, and gives it back after one bundle.

    An item that names its lane would make a thread that is ahead wait for the other's lane.
    """

    def __init__(self, every: list[Unit], batch_size: int, shuffle: bool, count: int = 2) -> None:
        self.idle = deque(bundles(every[lane::count], batch_size, shuffle, seed=lane) for lane in range(count))
        self.left = count

    def turns(self) -> Iterator[None]:
        """Something to map, until all lanes have ended."""
        while self.left:
            yield None

    def __call__(self, turn: None) -> Batch | None:  # noqa: ARG002
        try:
            lane = self.idle.popleft()
        except IndexError:
            return None
        bundle = next(lane, None)
        if bundle is None:
            self.left -= 1
        else:
            self.idle.append(lane)
        return bundle


def nodes(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """torchdata.nodes: a ParallelMapper of threads hands over bundles, cut in the consumer.

    Tried: one batch per hand-over, 1.5 times the CPU at batch 8. Whole files as items held gigabytes in its queue.
    """
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    lanes = Lanes(units(data_dir), batch_size, shuffle)
    mapper = ParallelMapper(IterableWrapper(lanes.turns()), lanes, num_workers=2, method="thread", in_order=False)
    for bundle in Loader(mapper):
        if bundle is not None:
            yield from cut(bundle, batch_size)


def spdl(data_dir: Path, batch_size: int, shuffle: bool) -> Iterable[Batch]:
    """SPDL: a pipeline of two threads, each a generator of bundles, cut in the consumer.

    Tried: one batch per hand-over, 3 to 4 times slower and 3 to 4 times the CPU at batch 8.
    """
    from spdl.pipeline import PipelineBuilder

    every = units(data_dir)

    def decode(lane: int) -> Iterator[Batch]:
        return bundles(every[lane::2], batch_size, shuffle, seed=lane)

    def generate(lane: int) -> Iterator[Batch]:
        yield from decode(lane)

    pipeline = PipelineBuilder().add_source(range(2)).pipe(generate, concurrency=2).add_sink(4).build(num_threads=2)
    with pipeline.auto_stop():
        for bundle in pipeline:
            yield from cut(bundle, batch_size)
