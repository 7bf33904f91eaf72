# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""A script for torch's DataLoader, moved over by its import line; then the batches of both are compared."""

from __future__ import annotations

import argparse

import torch
import torch.utils.data
from torch.utils.data import Dataset

from antifreeze import DataLoader  # before: from torch.utils.data import DataLoader


class Points(Dataset[tuple[torch.Tensor, int]]):
    """Points in the plane, labelled by the side of a line that they lie on."""

    def __init__(self, samples: int) -> None:
        self.points = torch.randn(samples, 2, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.points[i], int(self.points[i].sum() > 0)


def make(kind: type[torch.utils.data.DataLoader], dataset: Points, num_workers: int) -> torch.utils.data.DataLoader:
    order = torch.Generator().manual_seed(1)
    return kind(
        dataset,
        batch_size=32,
        shuffle=True,
        num_workers=num_workers,
        drop_last=True,
        generator=order,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4_000)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    dataset = Points(options.samples)

    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = make(DataLoader, dataset, num_workers=2)
    for epoch in range(options.epochs):
        for points, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")

    ours, theirs = make(DataLoader, dataset, 2), make(torch.utils.data.DataLoader, dataset, 0)
    for _ in range(2):
        for one, other in zip(ours, theirs, strict=True):
            assert all(map(torch.equal, one, other))
    print("two epochs: the same batches, in the same order, as from torch's loader")


if __name__ == "__main__":  # not needed here; torch's loader needs it where it does not fork
    main()
