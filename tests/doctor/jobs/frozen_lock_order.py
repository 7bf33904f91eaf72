"""Two workers take two locks in opposite orders."""

import multiprocessing
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset, get_worker_info

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Copied(Dataset):
    def __init__(self):
        self.source, self.target = multiprocessing.Lock(), multiprocessing.Lock()
        self.taken = multiprocessing.Barrier(2)

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        turned = get_worker_info().id == 1
        first, second = (self.target, self.source) if turned else (self.source, self.target)
        with first:
            self.taken.wait(60)
            READY.touch()
            with second:
                time.sleep(0.001)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Copied(), batch_size=4, num_workers=2):
        print(batch)
