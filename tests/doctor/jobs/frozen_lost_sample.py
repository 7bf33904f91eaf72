"""A batch with a function in it cannot be pickled: the queue's thread drops it."""

import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def keep(samples):
    return samples


class Lazy(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 9:
            READY.touch()
            return lambda: index
        return index


if __name__ == "__main__":
    for batch in DataLoader(Lazy(), batch_size=1, num_workers=2, collate_fn=keep):
        print(batch)
