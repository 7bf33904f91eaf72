"""The baseline: pyarrow's own iteration to NumPy, two threads over disjoint files, and nothing else."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cases._decode import Unit, units


@dataclass(slots=True)
class Sweep:
    """What the threads have seen."""

    rows: int = 0
    batches: int = 0
    first_s: float = 0.0


def to_numpy(batch: pa.RecordBatch) -> int:
    """Every column to NumPy."""
    for column in batch.columns:
        if pa.types.is_list(column.type):
            column.flatten().to_numpy().reshape(len(column), -1)
        else:
            column.to_numpy(zero_copy_only=False)
    return len(batch)


def sweep(data_dir: Path, batch_size: int, began_s: float, threads: int = 2) -> Sweep:
    """One pass over all the data. There is no hand-over: each thread drops what it decoded."""
    every, sweeps = units(data_dir, threads), [Sweep() for _ in range(threads)]

    def decode(share: list[Unit], seen: Sweep) -> None:
        for file, groups in share:
            for batch in pq.ParquetFile(file).iter_batches(batch_size, row_groups=groups, use_threads=False):
                seen.rows += to_numpy(batch)
                seen.batches += 1
                if not seen.first_s:
                    seen.first_s = time.perf_counter() - began_s

    workers = [
        threading.Thread(target=decode, args=(every[number::threads], sweeps[number])) for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return Sweep(
        rows=sum(seen.rows for seen in sweeps),
        batches=sum(seen.batches for seen in sweeps),
        first_s=min(seen.first_s for seen in sweeps if seen.first_s),
    )


def first_rows(data_dir: Path, rows: int) -> None:
    """The first rows of the first file, one thread: the least any loader has to do before its first batch."""
    file = units(data_dir)[0][0]
    to_numpy(next(pq.ParquetFile(file).iter_batches(rows, use_threads=False)))
