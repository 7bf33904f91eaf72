"""The dataset and its loader are made in different places: a data module, a helper, a maker."""

import lightning as L
import polars as pl
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, frame: pl.DataFrame):
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        return self.frame.filter(pl.col("id") == index).row(0)


class Tables(L.LightningDataModule):
    def setup(self, stage):
        frame = pl.read_parquet("train.parquet")
        self.train, self.val = Table(frame.head(100)), Table(frame.tail(100))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8, num_workers=2)  # finds: forked-library

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=8)


def make(path):
    return Table(pl.read_parquet(path))


def loader_of(dataset, workers):
    return DataLoader(dataset, batch_size=8, num_workers=workers)  # finds: forked-library


def main():
    made = make("a.parquet")
    for _ in loader_of(made, 4):
        pass
    for _ in DataLoader(make("b.parquet"), batch_size=8, num_workers=2):  # finds: forked-library
        pass


if __name__ == "__main__":
    main()
