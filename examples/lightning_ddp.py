# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "lightning", "polars"]
# ///
"""The job behind litData issue 823: two ranks, Polars in a validation sanity check, then Polars in training workers.

Where workers are forked from the ranks, it stands still until a collective gives up. Here each row comes once.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import antifreeze as af


def mean_of_ids(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a value that Polars has computed. Runs in a worker."""
    return {"n": row["n"], "mean": pl.LazyFrame({"ids": row["ids"].numpy()}).mean().collect().item()}


class Model(L.LightningModule):
    """Keeps the numbers of the rows that this rank was trained on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer, self.folder, self.seen = torch.nn.Linear(1, 1), folder, []

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        rows = pl.scan_parquet(self.folder / "*.parquet").select(pl.len()).collect().item()  # its threads start here
        if self.trainer.sanity_checking and index == 0:
            print(f"rank {self.global_rank}: sanity check with {len(batch['n'])} of {rows:,} rows", flush=True)

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        self.seen += batch["n"].tolist()
        return self.layer(batch["mean"].float()[:, None]).mean()

    def on_train_epoch_end(self) -> None:
        found = sorted(self.all_gather(torch.tensor(self.seen)).ravel().tolist())
        self.seen.clear()
        rows = len(self.trainer.train_dataloader.dataset)
        assert found == list(range(rows)), "a row is missing, or came twice"
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch}: {rows:,} rows on {self.trainer.world_size} ranks, each came once")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def main(options: argparse.Namespace, folder: Path) -> None:
    if "LOCAL_RANK" not in os.environ:  # Lightning starts this script again for the other ranks
        for i in range(4):
            n = np.arange(i * options.rows, (i + 1) * options.rows)
            ids = np.random.default_rng(i).integers(0, 32_000, (options.rows, 1024), np.int32)
            pq.write_table(pa.table({"n": n, "ids": list(ids)}), folder / f"part-{i}.parquet", row_group_size=100)
    data = af.StreamingDataset(folder, shuffle=True, transform=mean_of_ids), af.StreamingDataset(folder)
    loaders = [af.StreamingDataLoader(d, batch_size=8, num_workers=options.workers) for d in data]
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = L.Trainer(accelerator="cpu", devices=options.ranks, strategy="ddp", max_epochs=2, **quiet)
    trainer.fit(Model(folder), *loaders)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in {"--rows": 400, "--ranks": 2, "--workers": 2}.items():
        parser.add_argument(name, type=int, default=number)
    with tempfile.TemporaryDirectory() as temporary:
        main(parser.parse_args(), Path(os.environ.setdefault("EXAMPLE_FOLDER", temporary)))
