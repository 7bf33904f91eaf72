"""A worker reads from a pipe whose other end is open and silent."""

import os
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Piped(Dataset):
    def __init__(self):
        self.source, self.target = os.pipe()

    def __len__(self):
        return 50

    def __getitem__(self, index):
        READY.touch()
        return len(os.read(self.source, 100))


if __name__ == "__main__":
    for batch in DataLoader(Piped(), batch_size=2, num_workers=2):
        print(batch)
