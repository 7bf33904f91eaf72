"""A worker is killed while it holds a lock; the script starts the epoch again, and the new workers wait for it."""

import multiprocessing
import os
import signal
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Guarded(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()
        self.again = False

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if self.again:
            READY.touch()
        with self.lock:
            if index == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            return index


if __name__ == "__main__":
    dataset = Guarded()
    while True:
        try:
            for batch in DataLoader(dataset, batch_size=4, num_workers=2):
                print(batch)
        except (RuntimeError, OSError) as error:
            print(error)
            dataset.again = True
