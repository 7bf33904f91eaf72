"""A service that refuses two times of three: the client tries again and gets on."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def fetch(index, attempt):
    if attempt < 2:
        raise ConnectionError("busy, come again")
    return index


class Refused(Dataset):
    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        for attempt in range(5):
            try:
                return fetch(index, attempt)
            except ConnectionError:
                time.sleep(0.4)
        raise TimeoutError(f"sample {index} was refused five times")


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Refused(), num_workers=2)):
        print(step, batch, flush=True)
        READY.touch()
