# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]", "lightning"]
# ///
"""Lightning: fit, with sanity check and validation, that breaks off in mid-epoch and goes on: every row once."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import antifreeze as af

PLAIN: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Model(L.LightningModule):
    """Learns the sign of a sum, and keeps the numbers of the rows that it was trained on."""

    def __init__(self, last_step: int | None = None) -> None:
        super().__init__()
        self.layer, self.last_step = torch.nn.Linear(2, 1), last_step
        self.seen: list[tuple[int, int]] = []

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.global_step == self.last_step:
            raise InterruptedError("the machine goes down")
        self.seen += [(self.current_epoch, n) for n in batch["n"].tolist()]
        return self.loss(batch)

    def validation_step(self, batch: dict[str, torch.Tensor]) -> None:
        self.log("loss", self.loss(batch), batch_size=len(batch["n"]))

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        guess, wanted = self.layer(batch["point"]).squeeze(1), (batch["point"].sum(1) > 0).float()
        return torch.nn.functional.binary_cross_entropy_with_logits(guess, wanted)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def fit(model: Model, folder: Path, num_workers: int, **options: Any) -> L.Trainer:
    data = {part: af.StreamingDataset(folder / f"{part}.parquet", shuffle=part == "train") for part in ("train", "val")}
    loaders = [af.StreamingDataLoader(d, batch_size=32, num_workers=num_workers) for d in data.values()]
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=20, save_top_k=-1)
    trainer = L.Trainer(max_epochs=2, accelerator="cpu", callbacks=[saver], **PLAIN)
    try:
        trainer.fit(model, *loaders, **options)
    except InterruptedError as error:
        print(f"epoch {trainer.current_epoch}, step {trainer.global_step}: {error}")
    return trainer


def main(rows: int, folder: Path) -> None:
    for part in ("train", "val"):
        points = np.random.default_rng(len(part)).normal(size=(rows, 2)).astype(np.float32)
        pq.write_table(pa.table({"n": np.arange(rows), "point": list(points)}), folder / f"{part}.parquet")
    last = -(-rows // 32) * 3 // 2 // 20 * 20  # a step in the second epoch at which there is a checkpoint
    fit(first := Model(last), folder, num_workers=2)
    trainer = fit(second := Model(), folder, num_workers=1, ckpt_path=folder / f"step={last}.ckpt")
    wanted = [(epoch, n) for epoch in range(2) for n in range(rows)]
    assert sorted(first.seen + second.seen) == wanted, "a row is missing, or came twice"
    print(f"{len(wanted):,} rows in 2 epochs: each came once. Loss {trainer.callback_metrics['loss']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000)
    with tempfile.TemporaryDirectory() as name:
        main(parser.parse_args().rows, Path(name))
