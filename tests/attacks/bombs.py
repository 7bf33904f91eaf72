"""Small files that become large: what they hold, or claim to hold, is far more than ``memory_limit``.

Run as a program, it reads one and says what came of it and how much memory that took:

python bombs.py FILE MEMORY_LIMIT_MB THREADS shuffle|order plain|transform numpy|arrow
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MB = 1 << 20


def write_dictionary(path: Path) -> None:
    """A few kB: 64 short texts, then a text of 8 MB, two thousand times, from a dictionary."""
    indices = pa.array([0] * 64 + [1] * 2000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["short", "x" * (8 * MB)]))
    options = {"dictionary_pagesize_limit": 64 * MB, "store_schema": False, "compression": "zstd"}
    pq.write_table(pa.table({"n": range(2064), "text": column}), path, **options)


def write_short_first(path: Path) -> None:
    """Honest data whose first rows are short: 300 MB of texts of 100 kB behind 10,000 of 10 bytes."""
    texts = ["short text"] * 10_000 + ["y" * 100_000] * 3000
    pq.write_table(pa.table({"text": texts, "n": range(13_000)}), path, compression="zstd", row_group_size=1000)


def write_value(path: Path) -> None:
    """One value of 300 MB, compressed."""
    pq.write_table(pa.table({"v": [b"\0" * (300 * MB)]}), path, compression="zstd", use_dictionary=False)


def write_list(path: Path) -> None:
    """A row of 60 million equal numbers among short ones."""
    offsets = np.cumsum([0, *[3] * 100, 60_000_000, *[3] * 100])
    values = pa.array(np.zeros(offsets[-1], np.int32))
    column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    pq.write_table(pa.table({"ids": column}), path, compression="zstd")


def write_long_lists(path: Path) -> None:
    """Rows of 2 million equal numbers each, one of which fits."""
    column = pa.ListArray.from_arrays(pa.array(np.arange(61) * 1_000_000, pa.int32()), np.zeros(60_000_000, np.int32))
    pq.write_table(pa.table({"ids": column}), path, compression="zstd")


def write_nested(path: Path) -> None:
    """Lists of lists of texts from a dictionary: 3 million references to a text of 10 kB in ten rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000_000, np.int32)), pa.array(["z" * 10_000]))
    inner = pa.ListArray.from_arrays(pa.array(np.arange(3001) * 1000, pa.int32()), texts)
    outer = pa.ListArray.from_arrays(pa.array(np.arange(11) * 300, pa.int32()), inner)
    pq.write_table(pa.table({"t": outer}), path, store_schema=False, compression="zstd")


def write_wide(path: Path) -> None:
    """Two thousand columns, each with a page of half a megabyte that takes some bytes in the file."""
    zeros = np.zeros(64_000, np.int64)
    options = {"use_dictionary": False, "compression": "zstd"}
    pq.write_table(pa.table({f"c{i}": zeros for i in range(2000)}), path, **options)


def write_deep(path: Path) -> None:
    """A list of lists of lists, 20 deep, with a value at the bottom."""
    value: Any = 1
    kind: Any = pa.int64()
    for _ in range(20):
        value, kind = [value], pa.list_(kind)
    pq.write_table(pa.table({"d": pa.array([value] * 1000, kind)}), path)


def write_groups(path: Path) -> None:
    """Twenty thousand row groups of one row."""
    schema = pa.schema({"n": pa.int64()})
    with pq.ParquetWriter(path, schema) as writer:
        batch = pa.table({"n": pa.array(range(20_000), pa.int64())})
        writer.write_table(batch, row_group_size=1)


BOMBS: dict[str, Callable[[Path], None]] = {
    "dictionary": write_dictionary,
    "short_first": write_short_first,
    "value": write_value,
    "list": write_list,
    "long_lists": write_long_lists,
    "nested": write_nested,
    "wide": write_wide,
    "deep": write_deep,
    "groups": write_groups,
}


def same(batch: Any) -> Any:
    """User code, so that rows go through worker processes."""
    return batch


def read(path: str, limit_mb: int, threads: int, order: str, code: str, format_: str) -> tuple[str, int]:
    """Read at most 200 batches of two rows. Return what ended it, and how many rows came."""
    import antifreeze as af

    options = {"transform": af.batched(same)} if code == "transform" else {}
    count = 0
    try:
        dataset = af.StreamingDataset(path, format=format_, shuffle=order == "shuffle", **options)
        loader = af.StreamingDataLoader(
            dataset, batch_size=2, num_workers=threads, memory_limit=limit_mb * 10**6, timeout=120
        )
        for number, batch in enumerate(loader):
            count += len(next(iter(batch.values()))) if isinstance(batch, dict) else batch.num_rows
            if number >= 200:
                break
    except af.AntifreezeError as error:
        return f"{type(error).__name__}: {error}", count
    return "rows", count


def peak_mb() -> float:
    """Return the most memory that this process has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def main(path: str, limit_mb: str, threads: str, order: str, code: str, format_: str) -> None:
    """Read a bomb."""
    import antifreeze as af

    af.StreamingDataset, af.StreamingDataLoader  # noqa: B018 - imported now, to be told from what reading takes
    base_mb = peak_mb()
    what, count = read(path, int(limit_mb), int(threads), order, code, format_)
    print(json.dumps({"what": what[:600], "rows": count, "peak_mb": peak_mb(), "base_mb": base_mb}))


if __name__ == "__main__":
    main(*sys.argv[1:7])
