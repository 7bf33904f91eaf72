"""A sample is decoded by a program that never ends."""

import subprocess
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Videos(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        READY.touch()
        return subprocess.run(["sleep", "100000"], check=False).returncode


if __name__ == "__main__":
    for batch in DataLoader(Videos(), batch_size=2, num_workers=2):
        print(batch)
