"""Spawned workers rebuild the dataset, and its index is rebuilt in a loop that does not end."""

import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")


class Indexed(Dataset):
    def __init__(self, ready):
        self.ready = ready

    def __setstate__(self, state):
        self.__dict__.update(state)
        Path(self.ready).touch()
        number = 7
        while number != 1:
            number = number * 3 if number % 2 else number // 2 + 2

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return torch.tensor(index)


if __name__ == "__main__":
    for batch in DataLoader(Indexed(sys.argv[1]), batch_size=4, num_workers=2, multiprocessing_context="spawn"):
        print(batch)
