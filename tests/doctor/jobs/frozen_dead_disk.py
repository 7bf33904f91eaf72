"""A worker writes what it has decoded to a disk that does not answer any more: its file system is frozen."""

import fcntl
import os
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
DISK = Path(os.environ["DISK"])
FREEZE = 0xC0045877


class Cached(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        with (DISK / f"cache-{os.getpid()}").open("ab", buffering=0) as cache:
            if index == 80:
                fcntl.ioctl(os.open(DISK, os.O_RDONLY), FREEZE, 0)
                READY.touch()
            cache.write(b"decoded")
        return index


if __name__ == "__main__":
    for batch in DataLoader(Cached(), batch_size=4, num_workers=2):
        print(batch)
