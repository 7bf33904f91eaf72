"""The workers of a validation loader have nothing to do while the training goes on."""

import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**4

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


if __name__ == "__main__":
    validation = DataLoader(range(20), batch_size=4, num_workers=2, persistent_workers=True)
    print(sum(batch.sum() for batch in validation))
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=8, num_workers=1)):
        print(step, batch, flush=True)
        READY.touch()
