"""A sample fails with an error that cannot be pickled: the report gets lost on its way."""

import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Broken(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        class BadRecord(Exception):
            lock = threading.Lock()

        if index == 61:
            READY.touch()
            raise BadRecord(f"record {index} is damaged")
        return index


if __name__ == "__main__":
    for batch in DataLoader(Broken(), batch_size=4, num_workers=2):
        print(batch)
