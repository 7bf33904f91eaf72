"""A search for a free place in a full table goes round for ever."""

import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def place(table, key):
    at = key % len(table)
    while table[at] is not None:
        at = (at + 1) % len(table)
    return at


class Hashed(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 17:
            READY.touch()
        return place([1 if index == 17 else None] * 64, index)


if __name__ == "__main__":
    for batch in DataLoader(Hashed(), batch_size=4, num_workers=2):
        print(batch)
