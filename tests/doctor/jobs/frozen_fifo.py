"""A worker opens a named pipe that no program ever opens for writing."""

import os
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
FEED = READY.with_name("feed")


class Fed(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        READY.touch()
        with FEED.open("rb") as feed:
            return len(feed.read(100))


if __name__ == "__main__":
    os.mkfifo(FEED)
    for batch in DataLoader(Fed(), batch_size=2, num_workers=2):
        print(batch)
