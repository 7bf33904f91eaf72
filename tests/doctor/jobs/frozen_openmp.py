"""Torch's OpenMP threads ran in the trainer; workers that ask for two threads of their own wait for them."""

import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Spectra(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        torch.set_num_threads(2)
        READY.touch()
        return torch.full((3_000_000,), float(index)).sin().sum()


if __name__ == "__main__":
    torch.set_num_threads(2)
    print(torch.ones(5_000_000).exp().mean())
    for batch in DataLoader(Spectra(), batch_size=2, num_workers=2):
        print(batch)
