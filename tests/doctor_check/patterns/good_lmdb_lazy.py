"""LMDB, with an environment for each worker."""

import pickle

import lmdb
from torch.utils.data import Dataset


class Pairs(Dataset):
    def __init__(self, path):
        self.path = path
        self.env = None
        env = lmdb.open(path, readonly=True, lock=False)
        with env.begin() as txn:
            self.keys = pickle.loads(txn.get(b"__keys__"))
        env.close()

    def _env(self):
        if self.env is None:
            self.env = lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)
        return self.env

    def __len__(self):
        return len(self.keys)

    def __getitem__(self, index):
        with self._env().begin(write=False) as txn:
            return pickle.loads(txn.get(self.keys[index]))
