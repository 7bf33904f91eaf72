"""A helper process was killed while it held the lock that the workers share with it."""

import multiprocessing
import os
import signal
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
LOCK = multiprocessing.Lock()


def write_index():
    LOCK.acquire(timeout=60)
    os.kill(os.getpid(), signal.SIGKILL)


class Indexed(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        READY.touch()
        with LOCK:
            return index


if __name__ == "__main__":
    helper = multiprocessing.Process(target=write_index)
    helper.start()
    helper.join(60)
    for batch in DataLoader(Indexed(), batch_size=4, num_workers=2):
        print(batch)
