"""A frame of Polars that reaches the workers in many ways, after the trainer has read it."""

from dataclasses import dataclass
from functools import partial

import polars as pl
from torch.utils.data import DataLoader, Dataset, Subset

TABLE = pl.read_parquet("table.parquet")


class Given(Dataset):
    def __init__(self, df):
        self.df = df

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.df.filter(pl.col("x") == i)["y"].item()


class Named(Dataset):
    def __init__(s, path):
        table = pl.scan_parquet(path)
        s.df, s.size = table.collect(), 32

    def __len__(s):
        return s.size

    def __getitem__(s, i):
        return s.df.select("x").item(i, 0)


class Annotated(Dataset):
    def __init__(self, df: "pl.DataFrame | None" = None):
        self.df = df

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.df.with_columns(z=pl.lit(i)).row(i)


class Lazy(Dataset):
    def __init__(self, path):
        self.query = pl.scan_parquet(path).filter(pl.col("x") > 0)

    def __len__(self):
        return 32

    def __getitem__(self, i):
        part = self.query.slice(i, 1)
        return part.collect().row(0)


class OfTheModule(Dataset):
    def __len__(self):
        return TABLE.height

    def __getitem__(self, i):
        return TABLE.filter(pl.col("x") == i).row(0)


class OfTheClass(Dataset):
    table = pl.read_csv("table.csv")

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.table.group_by("x").len().row(i)


class ByProperty(Given):
    @property
    def frame(self):
        return self.df

    def __getitem__(self, i):
        return self.frame.sort("x").row(i)


class InDict(Dataset):
    def __init__(self, paths):
        self.parts = {}
        for path in paths:
            self.parts[path] = 1
        self.frames = {path: pl.read_parquet(path) for path in paths}
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        frame = self.frames[self.paths[i]]
        return frame.sample(1).row(0)


class Store:
    def __init__(self, frame):
        self.frame = frame

    def get(self, i):
        return self.frame.filter(pl.col("x") == i).row(0)


class ByStore(Dataset):
    def __init__(self, store):
        self.store = store

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.store.get(i)


@dataclass
class ByFields(Dataset):
    frame: pl.DataFrame
    size: int = 32

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return self.frame.drop("y").row(i)


class FromMaker(Dataset):
    def __init__(self, frame):
        self.frame = frame

    @classmethod
    def read(cls, path):
        return cls(pl.read_parquet(path))

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.pick(self.frame, i)

    @staticmethod
    def pick(frame, i):
        return frame.filter(pl.col("x") == i).row(0)


class Rows(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Plural(Rows):
    def __init__(self):
        super().__init__(32)
        self.frame = TABLE

    def __getitems__(self, indices):
        return self.frame[indices].rows()


class Joined(Rows):
    def __init__(self, n, names):
        super().__init__(n)
        self.names = names

    def __call__(self, batch):
        return pl.DataFrame({"x": batch}).join(self.names, on="x").rows()


def join(names, batch):
    return names.filter(pl.col("x").is_in(batch)).rows()


class Enrich:
    def __init__(self, names):
        self.names = names

    def __call__(self, x):
        return self.names.filter(pl.col("x") == x).row(0)


class Transformed(Rows):
    def __init__(self, n, transform=None):
        super().__init__(n)
        self.transform = transform

    def __getitem__(self, i):
        return self.transform(i)


def lookup(i):
    def inner():
        return TABLE.filter(pl.col("x") == i)

    return inner().row(0)


def loaders():
    frame = TABLE.unique()
    given = Given(frame)
    yield DataLoader(given, 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Subset(given, [1, 2]), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Named("table.parquet"), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Annotated(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Lazy("table.parquet"), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(OfTheModule(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(OfTheClass(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(ByProperty(frame), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(InDict(["a"]), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(ByStore(Store(frame)), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(ByFields(frame), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(FromMaker.read("table.parquet"), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Plural(), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Rows(32), 4, num_workers=2, collate_fn=Joined(32, frame))  # finds: forked-library
    yield DataLoader(Rows(32), 4, num_workers=2, collate_fn=partial(join, frame))  # finds: forked-library
    yield DataLoader(Rows(32), 4, num_workers=2, collate_fn=lambda batch: join(frame, batch))  # finds: forked-library
    yield DataLoader(Transformed(32, Enrich(frame)), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Transformed(32, lookup), 4, num_workers=2)  # finds: forked-library
    yield DataLoader(Rows(32), 4, num_workers=2)


if __name__ == "__main__":
    for loader in loaders():
        for _ in loader:
            pass
