"""A database connection for each worker."""

import sqlite3

from torch.utils.data import Dataset


class Rows(Dataset):
    def __init__(self, path):
        self.path = path
        self._local = None
        connection = sqlite3.connect(path)
        self.length = connection.execute("select count(*) from rows").fetchone()[0]
        connection.close()

    @property
    def connection(self):
        if self._local is None:
            self._local = sqlite3.connect(self.path)
        return self._local

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.connection.execute("select value from rows where id = ?", (index,)).fetchone()[0]
