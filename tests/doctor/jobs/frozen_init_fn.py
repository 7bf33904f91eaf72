"""The function that sets a worker up never returns."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def mount_data(worker_id):
    READY.touch()
    time.sleep(10**6)


class Numbers(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2, worker_init_fn=mount_data):
        print(batch)
