"""Methods whose first parameter is not called self, also in functions inside of them."""

import threading

import h5py
import numpy as np
import polars as pl
from torch.utils.data import DataLoader, Dataset


class Short(Dataset):
    def __init__(s, path):
        s.file = h5py.File(path)  # finds: shared-file
        s.lock = threading.Lock()  # finds: shared-lock
        s.rng = np.random.default_rng(0)  # finds: same-random
        s.frame = pl.read_parquet(path)

    def __len__(s):
        return len(s.file["x"])

    def __getitem__(s, i):
        def read():
            with s.lock:
                return s.file["x"][i]

        return read() + s.rng.normal(), s.near(i), s.scaled(2)

    def near(me, i):
        return [row for row in (lambda: me.frame.filter(pl.col("x") == i).rows())()]

    @classmethod
    def scaled(klass, factor):
        if factor > 1:
            raise StopIteration  # finds: stop-iteration
        return factor


def helper(self, path):
    """No method: its first parameter is a plain one."""
    self.file = h5py.File(path)
    return self


class Static(Dataset):
    def __init__(this, size):
        this.size = size

    def __len__(this):
        return this.size

    def __getitem__(this, i):
        return Static.decode(i), this.check(i)

    @staticmethod
    def decode(self):
        return [self.real]

    @staticmethod
    def check(i):
        if i > 10:
            exit(1)  # finds: exit-in-worker
        return i


if __name__ == "__main__":
    for _ in DataLoader(Short("a.h5"), batch_size=8, num_workers=2):  # finds: forked-library
        pass
    for _ in DataLoader(Static(8), batch_size=8, num_workers=2):
        pass
