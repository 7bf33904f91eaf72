"""Lightning: the sanity check uses Polars in the trainer, then the training workers are forked."""

import logging
import sys
import warnings
from pathlib import Path

import lightning
import polars as pl
import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
READY = Path(sys.argv[1])
FRAME = pl.DataFrame({"x": [float(i) for i in range(5000)]})


class Table(Dataset):
    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 256

    def __getitem__(self, index):
        if self.train:
            READY.touch()
        part = FRAME.lazy().filter(pl.col("x") >= index).with_columns(pl.col("x").rank().alias("r")).collect()
        return torch.tensor([part["r"][0]])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch):
        return self.layer(batch.float()).mean()

    def validation_step(self, batch):
        self.training_step(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **quiet)
    training = DataLoader(Table(True), batch_size=8, num_workers=2)
    trainer.fit(Model(), training, DataLoader(Table(False), batch_size=8))
