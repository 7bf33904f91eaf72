# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""From Parquet files to a trained model, in one page."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import antifreeze as af


def make_dataset(folder: Path, files: int, rows: int) -> None:
    """Write points in the plane, labelled by the side of a line that they lie on. Each file holds one label only."""
    rng = np.random.default_rng(0)
    for i in range(files):
        label = i % 2
        points = rng.normal(size=(rows, 2)).astype(np.float32)
        points[:, 0] = np.abs(points[:, 0]) * (1 if label else -1)
        table = pa.table(
            {
                "point": pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), 2),
                "label": np.full(rows, label, np.float32),
            }
        )
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=max(1, rows // 4))


def train(folder: Path, epochs: int) -> float:
    dataset = af.StreamingDataset(folder, shuffle=True, columns=["point", "label"])
    loader = af.StreamingDataLoader(dataset, batch_size=64, num_workers=2)
    print(dataset)
    print(f"{len(loader)} batches in an epoch")

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(epochs):
        right = 0
        for batch in loader:  # {"point": float32 tensor [64, 2], "label": float32 tensor [64]}
            guess = model(batch["point"]).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(guess, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int(((guess > 0) == (batch["label"] > 0)).sum())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right / len(dataset):.1%} right")
    return right / len(dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rows", type=int, default=4_000, help="rows in each file")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_dataset(Path(folder), options.files, options.rows)
        train(Path(folder), options.epochs)


if __name__ == "__main__":
    main()
