# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "accelerate"]
# ///
"""Accelerate: a loader that it prepares, stopped in mid-epoch by a checkpoint and resumed: every row once."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import Accelerator
from torch.utils.data import Dataset

import antifreeze as af
from antifreeze.integrations.accelerate import prepare


class Rows(Dataset[dict[str, Any]]):
    """A dataset of one's own; the same rows as the Parquet file has."""

    def __init__(self, points: np.ndarray) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"n": i, "point": self.points[i]}


def train(loader: Any, stop: int | None, state: Path) -> list[int]:
    """Train for an epoch, or until a step at which all state is saved; return the numbers of the rows that came."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = prepare(accelerator, loader)  # instead of accelerator.prepare(loader), which reads with torch's workers
    if state.exists():
        accelerator.load_state(state)
    seen: list[int] = []
    for step, batch in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            loss = (model(batch["point"]).squeeze(1) - batch["point"].sum(1)).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        seen += accelerator.gather(batch["n"]).tolist()
        if step == stop:
            accelerator.save_state(state)
            break
    accelerator.print(f"  {step} steps, loss {loss.item():.3f}")
    return seen


def main(rows: int, folder: Path) -> None:
    points = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    pq.write_table(pa.table({"n": np.arange(rows), "point": list(points)}), folder / "a.parquet", row_group_size=100)
    parquet = af.StreamingDataset(folder, shuffle=True)
    for name, make in {
        "DataLoader": lambda: af.DataLoader(Rows(points), batch_size=32, shuffle=True, num_workers=2),
        "StreamingDataLoader": lambda: af.StreamingDataLoader(parquet, batch_size=32, num_workers=2),
    }.items():
        print(name)
        seen = sorted(train(make(), 20, folder / name) + train(make(), None, folder / name))
        assert seen == list(range(rows)), "a row is missing, or came twice"
        print(f"  {rows:,} rows, stopped at step 20 and resumed: each came once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000)
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args().rows, Path(temporary))
