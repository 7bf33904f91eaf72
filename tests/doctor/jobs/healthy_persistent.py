"""Workers that stay over many short epochs, shuffled anew each time."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.01)
        return index


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, shuffle=True, persistent_workers=True)
    for epoch in range(10**6):
        for batch in loader:
            print(epoch, batch, flush=True)
        if epoch == 2:
            READY.touch()
