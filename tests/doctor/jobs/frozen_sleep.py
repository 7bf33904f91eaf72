"""One sample sleeps for ever."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def throttle(index):
    if index == 101:
        READY.touch()
        time.sleep(10**6)


class Throttled(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        throttle(index)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Throttled(), batch_size=4, num_workers=2, persistent_workers=True):
        print(batch)
