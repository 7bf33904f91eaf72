"""Generators begin in the trainer."""

import csv

from torch.utils.data import Dataset, IterableDataset


def read_lines(path):
    with open(path) as file:
        yield from file


class Lines(IterableDataset):
    def __init__(self, path):
        self.lines = read_lines(path)  # finds: shared-iterator

    def __iter__(self):
        for line in self.lines:
            yield line.strip()


class Next(Dataset):
    def __init__(self, numbers):
        self.squares = (n * n for n in numbers)  # finds: shared-iterator

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return next(self.squares)


class Own(IterableDataset):
    def __init__(self, path):
        self.path = path
        self.rows = self._rows()  # finds: shared-iterator

    def _rows(self):
        with open(self.path) as file:
            yield from csv.reader(file)

    def __iter__(self):
        yield from self.rows
