"""The dataset prints a lot, and whoever should read the job's output does not."""

import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Chatty(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        if index > 150:
            READY.touch()
        print(f"sample {index}: " + "detail " * 40, flush=True)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Chatty(), batch_size=4, num_workers=2):
        batch.sum()
