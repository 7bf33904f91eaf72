"""A worker needs more memory than there is, and waits for it: here the kernel may not kill."""

import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Videos(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 80:
            READY.touch()
            frames = []
            while True:
                frames.append(bytearray(1 << 20))
        return index


if __name__ == "__main__":
    for batch in DataLoader(Videos(), batch_size=4, num_workers=2):
        print(batch)
