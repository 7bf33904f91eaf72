"""A validation pass used Polars in the trainer; forked workers have its queue and none of its threads."""

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
        return 1000

    def __getitem__(self, index):
        READY.touch()
        return pl.scan_parquet(TABLE).filter(pl.col("id") == index).collect()["id"].item()


if __name__ == "__main__":
    pl.DataFrame({"id": range(20_000), "name": [str(i) for i in range(20_000)]}).write_parquet(TABLE)
    print(pl.scan_parquet(TABLE).group_by("name").len().collect().height)
    for batch in DataLoader(Rows(), batch_size=8, num_workers=2):
        print(batch.sum())
