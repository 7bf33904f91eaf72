"""What no loader heals: a connection of the trainer, None, duplicates, an endless retry."""

import sqlite3

from antifreeze import DataLoader
from torch.utils.data import Dataset, IterableDataset


class Rows(Dataset):
    def __init__(self, path):
        self.connection = sqlite3.connect(path)  # finds: shared-connection

    def __len__(self):
        return 10

    def __getitem__(self, index):
        while True:  # finds: endless-retry
            try:
                return self.connection.execute("select ?", (index,)).fetchone()
            except sqlite3.OperationalError:
                pass


class Numbers(IterableDataset):
    def __iter__(self):  # finds: duplicates
        yield from range(10)


first = DataLoader(Rows("rows.db"), batch_size=2, num_workers=2)
second = DataLoader(Numbers(), batch_size=2, num_workers=2)
