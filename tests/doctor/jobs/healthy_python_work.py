"""Samples of 50 ms of pure Python each."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Parsed(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        end = time.monotonic() + 0.05
        total = index
        while time.monotonic() < end:
            total = sum(ord(letter) for letter in str(total) * 20)
        return total


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Parsed(), batch_size=4, num_workers=2)):
        print(step, batch.sum(), flush=True)
        if step == 3:
            READY.touch()
