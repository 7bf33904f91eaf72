"""The trainer waits for its device in every step, and the workers for the trainer."""

import os
import sys
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        return index


if __name__ == "__main__":
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
        READY.touch()
        time.sleep(float(os.environ["STEP_SECONDS"]))
        print(step, batch, flush=True)
