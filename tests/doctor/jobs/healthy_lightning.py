"""Lightning with a validation after each short epoch."""

import logging
import sys
import time
import warnings
from pathlib import Path

import lightning
import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
READY = Path(sys.argv[1])


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((4,), float(index))


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.layer(batch).square().mean()

    def validation_step(self, batch):
        print(self.current_epoch, self.training_step(batch), flush=True)

    def on_train_epoch_end(self):
        READY.touch()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)


if __name__ == "__main__":
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=10**5, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Model(), DataLoader(Rows(), batch_size=8, num_workers=2), DataLoader(Rows(), batch_size=8))
