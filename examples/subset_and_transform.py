# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""Training and validation rows from one dataset, and your own code on rows and on batches."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import antifreeze as af


def make_dataset(folder: Path, rows: int) -> None:
    x = np.arange(rows, dtype=np.float32)
    pq.write_table(pa.table({"x": x, "row": np.arange(rows)}), folder / "part-0.parquet", row_group_size=500)


def with_noise(row: dict[str, Any]) -> dict[str, Any]:
    """Called for one row. The random numbers belong to the batch: the same ones come in every run."""
    return {"x": row["x"] + torch.randn(()), "row": row["row"]}


@af.batched
def scaled(batch: dict[str, Any]) -> dict[str, Any]:
    """Called for a whole batch, which is much faster than once for each of its rows."""
    batch["x"] /= 1_000  # in place: a batch is yours
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder), options.rows)

        # A transform belongs to the dataset, so training and validation open the same files with their own.
        cut = options.rows * 9 // 10
        train = af.StreamingDataset(folder, transform=with_noise, shuffle=True).subset(slice(0, cut))
        valid = af.StreamingDataset(folder, transform=scaled).subset(slice(cut, None))
        few = valid.subset([5, 3, 3, -1])  # any rows, in any order, as often as you like
        print(
            f"{len(train):,} rows to train on, {len(valid):,} to validate, and these: {[r['row'].item() for r in few]}"
        )

        first = [batch["x"] for batch in af.StreamingDataLoader(train, batch_size=64, num_workers=2)]
        again = [batch["x"] for batch in af.StreamingDataLoader(train, batch_size=64, num_workers=0)]
        print("the same noise with 2 workers and with none:", all(map(torch.equal, first, again)))

        rows = torch.cat([batch["row"] for batch in af.StreamingDataLoader(train, batch_size=64, num_workers=2)])
        assert sorted(rows.tolist()) == list(range(cut))
        batch = next(iter(af.StreamingDataLoader(valid, batch_size=64)))
        print(f"validation starts at row {batch['row'][0]} with x = {batch['x'][0]:.3f}")


if __name__ == "__main__":
    main()
