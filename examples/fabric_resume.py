# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "lightning"]
# ///
"""Lightning Fabric on two processes: a map-style loader that Fabric sets up, saved in mid-epoch and resumed."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.utils.data import Dataset

import antifreeze as af


class Squares(Dataset[tuple[int, float]]):
    """Numbers and their squares."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> tuple[int, float]:
        return i, float(i * i)


def make(fabric: Fabric, samples: int, num_workers: int) -> dict[str, Any]:
    """Return model, optimizer and loader. Fabric gives each rank its share of the samples."""
    model = torch.nn.Linear(1, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=1e-12))
    loader = af.DataLoader(Squares(samples), batch_size=16, shuffle=True, num_workers=num_workers)
    return {"model": model, "optimizer": optimizer, "loader": fabric.setup_dataloaders(loader)}


def train(fabric: Fabric, job: dict[str, Any], steps: int) -> list[int]:
    """Train for some steps of one epoch; return the numbers of the samples that this rank has seen."""
    seen: list[int] = []
    for _, (numbers, squares) in zip(range(steps), job["loader"], strict=False):
        seen += numbers.tolist()
        loss = (job["model"](numbers.float()[:, None]).squeeze(1) - squares).pow(2).mean()
        job["optimizer"].zero_grad()
        fabric.backward(loss)
        job["optimizer"].step()
    return seen


def main(samples: int, ranks: int, folder: Path) -> None:
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    job = make(fabric, samples, num_workers=2)
    half = len(job["loader"]) // 2
    seen = train(fabric, job, half)
    fabric.save(folder / "middle.ckpt", job)

    job = make(fabric, samples, num_workers=1)  # as after a restart
    fabric.load(folder / "middle.ckpt", job)
    seen += train(fabric, job, len(job["loader"]) - half)
    everything = sorted(fabric.all_gather(torch.tensor(seen)).ravel().tolist())
    assert everything == list(range(samples)), "a sample is missing, or came twice"
    fabric.print(f"{samples:,} samples on {ranks} ranks, stopped at step {half} and resumed: each came once")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3_200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        main(options.samples, options.ranks, Path(os.environ.setdefault("EXAMPLE_FOLDER", name)))
