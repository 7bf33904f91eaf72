"""The first sample takes 25 seconds, as the building of an index does; then all is fast."""

import os
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset, get_worker_info

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def build_index(way):
    end = time.monotonic() + 25
    if way == "sleep":
        time.sleep(25)
    elif way == "native":
        start = time.monotonic()
        sum(range(10**7))
        sum(range(int(10**7 * 25 / (time.monotonic() - start))))
    while time.monotonic() < end:
        sorted(str(number) for number in range(1000))


class Indexed(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        if index == 0 and get_worker_info().id == 0:
            READY.touch()
            build_index(os.environ["FIRST"])
        return index


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Indexed(), batch_size=4, num_workers=2)):
        print(step, batch, flush=True)
        time.sleep(0.1)
