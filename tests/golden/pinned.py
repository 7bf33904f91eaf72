"""Computes what must not change when the code is put in another shape: orders of samples, and what states hold.

python tests/golden/pinned.py          # print what this version gives
python tests/golden/pinned.py --write  # and make it the expectation: only for a change of order that is meant
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import antifreeze as af

EXPECTED = Path(__file__).with_name("expected.json")
SEEDS = (0, 7, 2**40 + 1)
MID_EPOCH = 3


def write_data(folder: Path) -> None:
    """Write files whose rows are numbered: of equal row groups, of unequal files, and with texts."""
    first = 0
    for kind, sizes, group in (
        ("even", (400, 400, 400), 50),
        ("uneven", (1, 700, 37, 262), 33),
        ("texts", (600,), 100),
    ):
        (folder / kind).mkdir()
        for number, size in enumerate(sizes):
            rows = range(first, first + size)
            columns: dict[str, Any] = {"n": pa.array(rows, pa.int64())}
            if kind == "texts":
                columns["text"] = ["x" * (i % 50) for i in rows]
            pq.write_table(pa.table(columns), folder / kind / f"{number}.parquet", row_group_size=group)
            first += size


class Numbers(torch.utils.data.Dataset[int]):
    """Its own indices."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    """Numbers, split between workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(100) if info is None else range(info.id, 100, info.num_workers))


def flat(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        batch = batch["n"]
    if isinstance(batch, (tuple, list)):
        return [flat(part) for part in batch]
    found: list[Any] = batch.tolist()
    return found


def digest(value: Any) -> str:
    """Return a short name for a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def described(state: dict[str, Any]) -> Any:
    """Return a state with what is long shortened, and without what depends on the bytes of the files."""
    shown = {name: value for name, value in state.items() if name != "data"}
    return {name: value if len(str(value)) < 200 else digest(value) for name, value in shown.items()}


def facts_of(loader: Any) -> dict[str, Any]:
    """Return the order of two epochs, and the states before, within and after one."""
    states = [described(loader.state_dict())]
    batches = iter(loader)
    order = [flat(batch) for batch in itertools.islice(batches, MID_EPOCH)]
    states.append(described(loader.state_dict()))
    order += [flat(batch) for batch in batches]
    states.append(described(loader.state_dict()))
    second = [flat(batch) for batch in loader]
    return {"first": order[0], "order": digest(order), "next epoch": digest(second), "states": states}


def streaming(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the loaders of Parquet files."""

    def make(dataset: Any, **options: Any) -> Callable[[], Any]:
        return lambda: af.StreamingDataLoader(dataset, **options)

    for kind, shuffle, seed in itertools.product(("even", "uneven", "texts"), (False, True), SEEDS):
        dataset = af.StreamingDataset(folder / kind, columns=["n"], shuffle=shuffle)
        yield f"{kind} shuffle={shuffle} seed={seed}", make(dataset, batch_size=7, seed=seed)
    for world_size, drop_last in itertools.product((2, 3, 4), (False, True)):
        for rank in range(world_size):
            dataset = af.StreamingDataset(folder / "uneven", shuffle=True)
            options = {"batch_size": 5, "seed": 1, "rank": rank, "world_size": world_size, "drop_last": drop_last}
            yield f"rank {rank} of {world_size} drop_last={drop_last}", make(dataset, **options)
    for limit in ("1MB", "64MB"):
        dataset = af.StreamingDataset(folder / "texts", shuffle=True)
        yield f"texts memory_limit={limit}", make(dataset, batch_size=16, seed=3, memory_limit=limit)
    even = af.StreamingDataset(folder / "even", shuffle=True)
    uneven = af.StreamingDataset(folder / "uneven", shuffle=True)
    yield "subset", make(even.subset(range(100, 900)), batch_size=8, seed=2)
    train, test = af.train_test_split(even, [0.8, 0.2], seed=5)
    yield "split, train", make(train, batch_size=8, seed=2)
    yield "split, test", make(test, batch_size=8, seed=2)
    for weights in ([0.5, 0.5], [0.9, 0.1]):
        mixed = af.CombinedStreamingDataset([even, uneven], weights=weights, seed=11)
        yield f"combined {weights}", make(mixed, batch_size=8)
        yield f"combined {weights}, rank 1 of 2", make(mixed, batch_size=8, rank=1, world_size=2)
    yield "parallel", make(af.ParallelStreamingDataset([even, uneven], seed=11), batch_size=8)


def plain() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the loaders of datasets of one's own. Workers change nothing, so there are none."""

    def make(dataset: Any, seed: int = 0, **options: Any) -> Callable[[], Any]:
        def loader() -> Any:
            torch.manual_seed(seed)
            return af.DataLoader(dataset, **options)

        return loader

    for seed, shuffle in itertools.product(SEEDS[:2], (False, True)):
        yield f"map shuffle={shuffle} seed={seed}", make(Numbers(53), seed, batch_size=6, shuffle=shuffle)
    yield "map, drop_last", make(Numbers(53), batch_size=6, drop_last=True, shuffle=True)
    yield "iterable", make(Stream(), batch_size=6)
    yield "iterable, two workers", make(Stream(), batch_size=6, num_workers=2)
    sampler = torch.utils.data.WeightedRandomSampler([0.1] * 20 + [0.9] * 33, 40)
    yield "sampler", make(Numbers(53), batch_size=6, sampler=sampler)
    subset = torch.utils.data.SubsetRandomSampler(range(10, 50))
    batches = torch.utils.data.BatchSampler(subset, 7, drop_last=False)
    yield "batch sampler", make(Numbers(53), batch_sampler=batches)
    for rank in range(2):
        ranks = torch.utils.data.DistributedSampler(Numbers(53), num_replicas=2, rank=rank, seed=4)
        yield f"distributed sampler, rank {rank}", make(Numbers(53), batch_size=6, sampler=ranks)


def all_facts() -> dict[str, Any]:
    """Return everything that is pinned."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_data(folder)
        loaders = {f"StreamingDataLoader: {name}": make for name, make in streaming(folder)}
        loaders |= {f"DataLoader: {name}": make for name, make in plain()}
        return {name: facts_of(make()) for name, make in loaders.items()}


if __name__ == "__main__":
    found = json.dumps(all_facts(), indent=1, sort_keys=True)
    print(found)
    if "--write" in sys.argv:
        EXPECTED.write_text(found + "\n")
