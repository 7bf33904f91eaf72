"""Polars in the trainer, then in forked workers."""

import polars as pl
from torch.utils.data import DataLoader, Dataset

PATH = "table.parquet"


class Queried(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return int(pl.scan_parquet(PATH).filter(pl.col("x") == index).collect()["x"][0])


class Framed(Dataset):
    def __init__(self):
        self.frame = pl.read_parquet(PATH)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        return self.frame.filter(pl.col("x") == index).row(0)


def main():
    pl.DataFrame({"x": range(50_000)}).write_parquet(PATH)
    for _ in DataLoader(Queried(), batch_size=4, num_workers=2):  # finds: forked-library
        pass
    for _ in DataLoader(Framed(), batch_size=4, num_workers=2):  # finds: forked-library
        pass


if __name__ == "__main__":
    main()
