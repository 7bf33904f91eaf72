"""Workers take turns: each holds their lock for a second while the other one waits."""

import multiprocessing
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class OneTape(Dataset):
    def __init__(self):
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        with self.lock:
            time.sleep(1)
        time.sleep(0.05)
        return index


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(OneTape(), num_workers=2)):
        print(step, batch, flush=True)
        READY.touch()
