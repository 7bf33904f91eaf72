"""Batches of 64 MB, one after the other, through shared memory."""

import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Volumes(Dataset):
    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        return torch.full((4 << 20,), float(index))


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Volumes(), batch_size=4, num_workers=2)):
        print(step, batch.mean(), flush=True)
        time.sleep(0.2)
        READY.touch()
