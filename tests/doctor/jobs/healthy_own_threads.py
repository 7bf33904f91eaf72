"""Each worker has a pool of threads of its own, made after the fork, and waits for it."""

import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


@cache
def pool():
    return ThreadPoolExecutor(3)


def fetch(part):
    time.sleep(0.7)
    return part


class Parts(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        return sum(pool().map(fetch, range(index, index + 3)))


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Parts(), batch_size=2, num_workers=2)):
        print(step, batch, flush=True)
        READY.touch()
