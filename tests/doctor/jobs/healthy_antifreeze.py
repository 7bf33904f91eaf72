"""The loader of this package, on a dataset that somebody wrote for torch."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import Dataset

import antifreeze

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


if __name__ == "__main__":
    for step, batch in enumerate(antifreeze.DataLoader(Numbers(), batch_size=4, num_workers=2)):
        print(step, batch, flush=True)
        if step == 3:
            READY.touch()
