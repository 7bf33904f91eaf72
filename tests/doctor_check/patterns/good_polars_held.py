"""Frames that workers only read rows of, and frames that have become something else before."""

import polars as pl
from torch.utils.data import DataLoader, Dataset


class OnlyRows(Dataset):
    def __init__(self, path):
        self.df = pl.read_parquet(path)
        self.labels = self.df["label"]

    def __len__(self):
        return len(self.df)

    def __getitem__(self, index):
        first = self.df.row(index)
        second = self.df[index, "x"], self.df.item(index, "x"), self.df.slice(index, 1).rows()
        return first, second, self.labels[index], self.df["x"][index], self.df["x"].to_numpy()[index]


class Converted(Dataset):
    def __init__(self, path):
        frame = pl.read_parquet(path)
        frame = frame.filter(pl.col("x") > 0)
        frame = frame.to_pandas()
        self.frame = frame

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        return self.frame.filter(["x"]).iloc[index]


class ConvertedLater(Dataset):
    def __init__(self, path):
        self.frame = pl.read_parquet(path)
        self.frame = self.frame.to_dicts()
        self.other = pl.scan_parquet(path)
        self.names = self.other.collect()["name"].to_list()
        del self.other

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        return self.frame[index], self.names.index("a"), self.names.sort()


class Expressions(Dataset):
    """It keeps expressions and types, which start nothing."""

    def __init__(self):
        self.wanted = pl.col("x").sum().filter(pl.col("y") > 0)
        self.schema = pl.Schema({"x": pl.Int64})

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return str(self.wanted.sort()), len(self.schema)


def filtered(df):
    """The same names, another library."""
    return df.filter(items=["x"]).sample(1)


class OfAnotherLibrary(Dataset):
    def __init__(self, df):
        self.df = df

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return filtered(self.df)


def main():
    pl.read_parquet("table.parquet").select("x")
    import pandas as pd

    for dataset in (
        OnlyRows("t"),
        Converted("t"),
        ConvertedLater("t"),
        Expressions(),
        OfAnotherLibrary(pd.DataFrame()),
    ):
        for _ in DataLoader(dataset, batch_size=8, num_workers=2):
            pass
    for _ in DataLoader(OnlyRows("t"), batch_size=8, num_workers=2):
        pass
    for _ in DataLoader(Converted("t"), batch_size=8, num_workers=2):
        pass
    for _ in DataLoader(ConvertedLater("t"), batch_size=8, num_workers=2):
        pass
    for _ in DataLoader(Expressions(), batch_size=8, num_workers=2):
        pass
    for _ in DataLoader(OfAnotherLibrary(pd.DataFrame()), batch_size=8, num_workers=2):
        pass


if __name__ == "__main__":
    main()
