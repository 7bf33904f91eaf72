# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze"]
# ///
"""No torch: batches of NumPy arrays, or of Arrow."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import antifreeze as af


def make_dataset(folder: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    days = np.datetime64("2024-01-01") + rng.integers(0, 366, rows)
    table = pa.table({"day": days, "value": rng.normal(loc=3.0, size=rows)})
    pq.write_table(table, folder / "values.parquet", row_group_size=max(1, rows // 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder), options.rows)

        dataset = af.StreamingDataset(folder, format="numpy")
        count, total = 0, 0.0
        for batch in af.StreamingDataLoader(dataset, batch_size=1024, num_workers=2):
            count += len(batch["day"])
            total += batch["value"].sum()
            batch["value"] *= 0  # a batch is yours: changing it reaches no other batch and no file
        print(f"numpy: {count:,} rows, mean {total / count:.3f}, days are {batch['day'].dtype}")

        dataset = af.StreamingDataset(folder, format="arrow", columns=["value"])
        batch = next(iter(af.StreamingDataLoader(dataset, batch_size=1024)))
        print(f"arrow: a {type(batch).__name__} of {batch.num_rows:,} rows, {batch.schema.field('value')}")
    print("torch was imported" if "torch" in sys.modules else "torch was never imported")


if __name__ == "__main__":
    main()
