"""A thread of the trainer holds the lock of a cache at the instant of the fork."""

import sys
import threading
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Cache:
    def __init__(self):
        self.lock = threading.Lock()
        self.held = threading.Event()

    def refresh(self):
        while True:
            with self.lock:
                self.held.set()
                time.sleep(1)

    def get(self, index):
        with self.lock:
            return index


class Cached(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        READY.touch()
        return CACHE.get(index)


CACHE = Cache()

if __name__ == "__main__":
    threading.Thread(target=CACHE.refresh, daemon=True).start()
    CACHE.held.wait(60)
    for batch in DataLoader(Cached(), batch_size=4, num_workers=2):
        print(batch.sum())
