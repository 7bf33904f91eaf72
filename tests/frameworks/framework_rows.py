"""What the frameworks are fed: samples that say their number and which process made them. Workers import no torch."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 4


def sample(n: int) -> dict[str, Any]:
    """Return a sample."""
    return {"n": n, "x": np.full(LENGTH, n, np.float32), "pid": os.getpid(), "parent": os.getppid()}


class Rows:
    """A map-style dataset, with a sample that raises if one is given."""

    def __init__(self, num_rows: int = 24, *, bad: int | None = None, first: int = 0) -> None:
        self.num_rows, self.bad, self.first = num_rows, bad, first

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == self.bad:
            raise ValueError(f"sample {i} is damaged")
        return sample(self.first + i)


class Noise(Rows):
    """Draws random numbers for each sample, and tells whether its process has imported a framework."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        framework = bool({"lightning", "transformers", "accelerate"} & set(sys.modules))
        return sample(i) | {"noise": np.random.rand(), "framework": framework}


def with_processes(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a Parquet file as a sample; a transform, so it runs in a worker."""
    return sample(int(row["n"]))


def numbers(batch: dict[str, Any]) -> list[int]:
    """Return the numbers of a batch, after a look at its other values."""
    found: list[int] = batch["n"].tolist()
    assert np.array_equal(np.asarray(batch["x"])[:, 0], np.asarray(found, np.float32))
    return found


def makers(batches: Iterable[dict[str, Any]]) -> str:
    """Return who made the batches: this process, its own children (torch's workers), or others (ours).

    Rows that no function was called for come from threads.
    """
    kinds = set()
    for batch in batches:
        for pid, parent in zip(batch["pid"], batch["parent"], strict=True) if "pid" in batch else ():
            kinds.add("inline" if int(pid) == os.getpid() else "torch" if int(parent) == os.getpid() else "ours")
        kinds |= {"threads"} if "pid" not in batch else set()
    return " and ".join(sorted(kinds))


def write_rows(folder: Path, num_rows: int, files: int = 3) -> Path:
    """Write Parquet files whose rows are numbered, unless they are there: ranks share a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    for i, n in enumerate(np.array_split(np.arange(num_rows), files)):
        table = pa.table({"n": n, "x": list(np.repeat(n.astype(np.float32)[:, None], LENGTH, 1))})
        mine, file = folder / f".{os.getpid()}-{i}", folder / f"part-{i}.parquet"
        pq.write_table(table, mine, row_group_size=7)
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(mine)
        mine.unlink()
    return folder
