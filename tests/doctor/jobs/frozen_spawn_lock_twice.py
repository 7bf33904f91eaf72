"""A function that holds a lock calls another one that takes it, in a worker that was not forked."""

import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
LOCK = threading.Lock()
CACHE = {}


def evict():
    with LOCK:
        CACHE.clear()


def remember(index):
    with LOCK:
        if len(CACHE) > 10:
            READY.touch()
            evict()
        CACHE[index] = index


class Cached(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        remember(index)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Cached(), batch_size=4, num_workers=2, multiprocessing_context="spawn"):
        print(batch)
