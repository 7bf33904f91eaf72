"""Polars reads the table, arrays go to the workers."""

import polars as pl
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, path):
        frame = pl.read_parquet(path)
        self.x = frame.select("x").to_numpy()
        self.y = frame["y"].to_numpy()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


loader = DataLoader(Table("t.parquet"), batch_size=64, num_workers=2)
