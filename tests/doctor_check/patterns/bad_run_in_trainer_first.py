"""The trainer looks at a sample first, or validates without workers: both run the dataset, and Polars, there."""

import polars as pl
from torch.utils.data import DataLoader, Dataset


class Looked(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return pl.read_parquet("a.parquet").height


class Validated(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return pl.read_csv("a.csv").height


class Helped(Dataset):
    def __init__(self):
        self.size = rows("a.json")

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return rows("b.json")


def rows(path):
    return pl.read_json(path).height


def main():
    looked, validated = Looked(), Validated()
    print(looked[0])
    val = DataLoader(validated, batch_size=8)
    for _ in range(3):
        for _ in val:
            pass
        for _ in DataLoader(looked, batch_size=8, num_workers=2):  # finds: forked-library
            pass
        for _ in DataLoader(validated, batch_size=8, num_workers=2):  # finds: forked-library
            pass
        for _ in DataLoader(Helped(), batch_size=8, num_workers=2):  # finds: forked-library
            pass


if __name__ == "__main__":
    main()
