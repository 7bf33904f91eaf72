"""Converts the seed data for peers that read only their own format.

Row-by-row formats are written from the first `SUBSET` rows: their readers never get further in the time given.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SUBSET = {"mds": 100_000, "webdataset": 50_000, "arrayrecord": 50_000, "litdata-optimized": 200_000}
ROWS_PER_SHARD = 5_000


def convert(source: Path, target: Path, form: str) -> str:
    """Write the Parquet files in `source` to `target`; say how many rows that were."""
    write, limit = WRITERS[form], SUBSET.get(form)
    total = sum(pq.ParquetFile(file).metadata.num_rows for file in sorted(source.glob("*.parquet")))
    num_rows = total if limit is None else min(limit, total)
    write(source, target, num_rows)
    return f"{num_rows:,} of {total:,} rows as {form}"


def rows(source: Path, num_rows: int) -> Iterator[dict[str, Any]]:
    """The first rows of a folder or of one file, ids as one array."""
    left = num_rows
    for file in sorted(source.glob("*.parquet")) if source.is_dir() else [source]:
        for batch in pq.ParquetFile(file).iter_batches(1024):
            ids = batch.column("ids").flatten().to_numpy().reshape(len(batch), -1)
            rest = batch.drop_columns(["ids"]).to_pylist()
            for row, values in zip(ids, rest, strict=True):
                if left == 0:
                    return
                left -= 1
                yield {"ids": row, **values}


def write_mds(source: Path, target: Path, num_rows: int) -> None:
    from cases._stubs import stand_in

    stand_in("torchvision", "transformers")
    from streaming import MDSWriter

    width = len(next(rows(source, 1))["ids"])
    columns = {"ids": f"ndarray:int32:{width}", "labels": "int64", "score": "float32", "tag": "str"}
    # The default shard of 64 MB, uncompressed: the fastest to read.
    with MDSWriter(out=str(target), columns=columns) as out:
        for row in rows(source, num_rows):
            out.write(row)


def write_webdataset(source: Path, target: Path, num_rows: int) -> None:
    """Two tar members a row rather than one for each column: each member has its own header to parse."""

    def add(tar: tarfile.TarFile, name: str, value: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(value)
        tar.addfile(info, io.BytesIO(value))

    tar: tarfile.TarFile | None = None
    for number, row in enumerate(rows(source, num_rows)):
        if number % ROWS_PER_SHARD == 0:
            if tar is not None:
                tar.close()
            tar = tarfile.open(target / f"shard-{number // ROWS_PER_SHARD:05d}.tar", "w")  # noqa: SIM115
        assert tar is not None
        rest = {name: row[name] for name in ("labels", "score", "tag")}
        add(tar, f"{number:08d}.ids", row["ids"].tobytes())
        add(tar, f"{number:08d}.json", json.dumps(rest).encode())
    if tar is not None:
        tar.close()


def write_arrayrecord(source: Path, target: Path, num_rows: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer: Any = None
    for number, row in enumerate(rows(source, num_rows)):
        if number % ROWS_PER_SHARD == 0:
            if writer is not None:
                writer.close()
            path = target / f"shard-{number // ROWS_PER_SHARD:05d}.array_record"
            # group_size:1: Grain reads records one at a time. Tried: compressed, its default; within the noise.
            writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        head = np.array([row["labels"]], np.int64).tobytes() + np.array([row["score"]], np.float32).tobytes()
        writer.write(head + row["ids"].tobytes() + row["tag"].encode())
    if writer is not None:
        writer.close()


def write_lance(source: Path, target: Path, num_rows: int) -> None:
    """Fixed-size lists, one fragment per Parquet file, as Lance's own guide for training data."""
    import lance

    width = len(next(rows(source, 1))["ids"])

    def batches() -> Iterator[pa.RecordBatch]:
        for file in sorted(source.glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(8192):
                ids = pa.FixedSizeListArray.from_arrays(batch.column("ids").flatten(), width)
                yield batch.set_column(batch.schema.get_field_index("ids"), "ids", ids)

    first = next(batches())
    per_file = pq.ParquetFile(next(iter(sorted(source.glob("*.parquet"))))).metadata.num_rows
    del num_rows
    lance.write_dataset(
        pa.RecordBatchReader.from_batches(first.schema, batches()),
        str(target / "data.lance"),
        max_rows_per_file=per_file,
    )


def write_litdata_index(source: Path, target: Path, num_rows: int) -> None:
    """The same Parquet files (hard links) with litData's index beside them."""
    from litdata.streaming.writer import index_parquet_dataset

    del num_rows
    for file in sorted(source.glob("*.parquet")):
        os.link(file, target / file.name)
    index_parquet_dataset(str(target))


def litdata_rows(share: tuple[Path, int]) -> Iterator[dict[str, Any]]:
    """The rows of one file; litData wants a function at module level, its documentation a generator."""
    yield from rows(*share)


def write_litdata_optimized(source: Path, target: Path, num_rows: int) -> None:
    import litdata

    shares, left = [], num_rows
    for file in sorted(source.glob("*.parquet")):
        take = min(left, pq.ParquetFile(file).metadata.num_rows)
        left -= take
        if take:
            shares.append((file, take))
    litdata.optimize(fn=litdata_rows, inputs=shares, output_dir=str(target), chunk_bytes="64MB", num_workers=2)


WRITERS: dict[str, Callable[[Path, Path, int], None]] = {
    "mds": write_mds,
    "webdataset": write_webdataset,
    "arrayrecord": write_arrayrecord,
    "lance": write_lance,
    "litdata-index": write_litdata_index,
    "litdata-optimized": write_litdata_optimized,
}
