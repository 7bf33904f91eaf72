"""Batches carry an open file and a lock; a spawned worker drops every one of them."""

import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def collate(samples):
    READY.touch()
    return {"samples": samples, "lock": threading.Lock(), "file": open(__file__)}


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), num_workers=1, collate_fn=collate, multiprocessing_context="spawn"):
        print(batch)
