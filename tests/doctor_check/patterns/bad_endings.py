"""Ends a worker or an epoch in place of an error, or raises what cannot be sent."""

import os
import sys

from torch.utils.data import Dataset


class Exits(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 3:
            sys.exit("bad sample")  # finds: exit-in-worker
        if index == 4:
            os._exit(0)  # finds: exit-in-worker
        return self.work(index)

    def work(self, index):
        class BadRecord(Exception):
            pass

        if index == 5:
            raise BadRecord("five")  # finds: local-error
        if index == 6:
            raise StopIteration  # finds: stop-iteration
        return index


class Functions(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return (lambda: index) if index == 3 else index  # finds: not-data


class Lazily(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, (n * n for n in range(index))  # finds: not-data
