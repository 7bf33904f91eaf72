"""Polars in the trainer and in workers that do not descend from it."""

import sys
import warnings
from pathlib import Path

import polars as pl
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
TABLE = READY.with_suffix(".parquet")


class Rows(Dataset):
    def __len__(self):
        return 10**7

    def __getitem__(self, index):
        return pl.scan_parquet(TABLE).filter(pl.col("id") == index % 20_000).collect()["id"].item()


if __name__ == "__main__":
    pl.DataFrame({"id": range(20_000)}).write_parquet(TABLE)
    print(pl.scan_parquet(TABLE).select(pl.col("id").sum()).collect().item())
    loader = DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="forkserver")
    for step, batch in enumerate(loader):
        print(step, batch, flush=True)
        READY.touch()
