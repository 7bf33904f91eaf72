# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "polars"]
# ///
"""The script of litData issue 823, where it hung at the first batch: Polars in the parent, then forked workers.

`main` follows the reported script; its two litData imports name antifreeze. Beside that, constants became options, the
alarm starts once the data is made, and --all goes through the epoch and compares every row with what pyarrow reads.
"""

# ruff: noqa: PTH118, PTH208
import argparse
import multiprocessing as mp
import os
import signal
import sys
import tempfile
import time

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import antifreeze as ld
from antifreeze.streaming.item_loader import ParquetLoader


def main(options: argparse.Namespace, DATA_DIR: str) -> None:  # noqa: N803
    print(f"[env] python={sys.version.split()[0]} start_method={options.mode!r} polars={pl.__version__}")
    rng, seq_len = np.random.default_rng(0), 1024
    for i in range(options.files if not os.listdir(DATA_DIR) else 0):
        tbl = {
            "ids": rng.integers(0, 32_000, size=(options.rows, seq_len), dtype=np.int32).tolist(),
            "labels": rng.integers(0, 2, size=options.rows, dtype=np.int64),
            "score": rng.random(options.rows, dtype=np.float32),
            "tag": [f"tag_{j}" for j in range(options.rows)],
        }
        pq.write_table(pa.table(tbl), os.path.join(DATA_DIR, f"part-{i}.parquet"))
    ld.index_parquet_dataset(DATA_DIR)
    # Touch Polars in the parent first, as a validation run before training does.
    _ = pl.scan_parquet(os.path.join(DATA_DIR, "part-0.parquet")).collect()
    dataset = ld.StreamingDataset(DATA_DIR, item_loader=ParquetLoader(low_memory=options.low_memory))
    loader_kwargs: dict = {"batch_size": 8, "num_workers": 4}
    if options.mode != "fork":
        loader_kwargs["multiprocessing_context"] = mp.get_context(options.mode)
    loader = ld.StreamingDataLoader(dataset, **loader_kwargs)
    signal.alarm(options.timeout)  # not before the data was made, which may take longer
    t0, same, truth = time.time(), 0, (row for i in range(options.files) for row in read(DATA_DIR, i))
    for i, batch in enumerate(loader):
        if i <= 5:
            print(f"  got batch {i} ({time.time() - t0:.1f}s)")
        elif not options.all:
            break
        for ids, *row in zip(*batch.values(), strict=True) if options.all else ():
            wanted, *others = next(truth)
            same += np.array_equal(ids, wanted) and row == others
    if options.all and same != len(dataset):
        sys.exit(f"[!] only {same:,} of {len(dataset):,} rows have the values that pyarrow reads")
    print(f"[OK] completed normally in {time.time() - t0:.1f}s{f', {same:,} rows compared' * options.all}")


def read(folder: str, i: int):
    for part in pq.ParquetFile(os.path.join(folder, f"part-{i}.parquet")).iter_batches(1024):
        ids = part["ids"].flatten().to_numpy().reshape(len(part), -1)
        yield from zip(ids, *(part[name].to_pylist() for name in ("labels", "score", "tag")), strict=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", nargs="?", default="fork", choices=["fork", "spawn", "forkserver"])
    parser.add_argument("--data", help="where the files are, or are made; by default a temporary folder")
    for name, number in {"--files": 8, "--rows": 50_000, "--timeout": 90}.items():
        parser.add_argument(name, type=int, default=number)
    parser.add_argument("--low-memory", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--all", action="store_true", help="go through all rows, and compare them")
    signal.signal(signal.SIGALRM, lambda *_: sys.stderr.write("[!] TIMED OUT: this is the hang\n") and os._exit(124))
    with tempfile.TemporaryDirectory() as temporary:
        main(options := parser.parse_args(), options.data or temporary)
