"""Tokens in a memory map, blocks at random places; NumPy's global generator is seeded in each worker by torch."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Tokens(Dataset):
    def __init__(self, path, block=1024):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.block = block

    def __len__(self):
        return len(self.data) // self.block

    def __getitem__(self, index):
        start = np.random.randint(0, len(self.data) - self.block - 1)
        piece = torch.from_numpy(self.data[start : start + self.block + 1].astype(np.int64))
        return piece[:-1], piece[1:]


if __name__ == "__main__":
    loader = DataLoader(Tokens("train.bin"), batch_size=12, num_workers=2, pin_memory=True)
    for x, _y in loader:
        print(x.shape)
