"""Each sample takes half a second in which nothing is computed."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Transformed(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        time.sleep(0.5)
        return index


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Transformed(), batch_size=4, num_workers=2)):
        print(step, batch, flush=True)
        READY.touch()
