"""Polars in the workers, which are not forked."""

import polars as pl
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, path):
        self.frame = pl.read_parquet(path)

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        return self.frame.row(index)


if __name__ == "__main__":
    for _ in DataLoader(Table("t.parquet"), batch_size=64, num_workers=2, multiprocessing_context="spawn"):
        pass
