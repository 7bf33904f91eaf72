"""One of the workers is stopped, as a person or a batch system does it."""

import os
import signal
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        if index == 40:
            READY.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
        print(batch)
