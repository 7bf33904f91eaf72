"""A worker needs more memory than there is, and the kernel kills it; SIGCHLD is ignored, and nobody notices."""

import signal
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
    batches = iter(DataLoader(Videos(), batch_size=4, num_workers=2))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for batch in batches:
        print(batch)
