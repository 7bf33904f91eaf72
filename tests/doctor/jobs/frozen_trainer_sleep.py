"""No workers: a sample sleeps for ever in the trainer."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Limited(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 12:
            READY.touch()
            time.sleep(10**6)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Limited(), batch_size=4, num_workers=0):
        print(batch)
