"""Polars before the fork and in every step, but never in a worker: nothing is wrong with that."""

import sys
import time
import warnings
from pathlib import Path

import polars as pl
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        time.sleep(0.2)
        return index


if __name__ == "__main__":
    history = pl.DataFrame({"mean": [0.0]})
    print(history.lazy().select(pl.all().sum()).collect())
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=8, num_workers=2)):
        history = pl.concat([history, pl.DataFrame({"mean": [batch.double().mean().item()]})])
        print(step, history.lazy().select(pl.all().rolling_mean(3)).collect().item(-1, 0), flush=True)
        READY.touch()
