"""The epoch is over; a worker that was stopped keeps the job from ending."""

import atexit
import os
import signal
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Owners(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid()


if __name__ == "__main__":
    atexit.register(READY.touch)
    loader = DataLoader(Owners(), batch_size=1, num_workers=2)
    for step, batch in enumerate(loader):
        if step == len(loader) - 1:
            os.kill(int(batch), signal.SIGSTOP)
    print("trained", len(loader))
