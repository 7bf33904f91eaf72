"""A prefetch thread that the dataset started in its constructor sets the events that its samples wait for."""

import sys
import threading
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Prefetched(Dataset):
    def __init__(self):
        self.there = [threading.Event() for _ in range(1000)]
        threading.Thread(target=self.prefetch, daemon=True).start()

    def prefetch(self):
        for event in self.there:
            time.sleep(1)
            event.set()

    def __len__(self):
        return len(self.there)

    def __getitem__(self, index):
        READY.touch()
        self.there[index].wait()
        return index


if __name__ == "__main__":
    for batch in DataLoader(Prefetched(), batch_size=4, num_workers=2, shuffle=True):
        print(batch)
