# facts: cores=2
"""Workers start with the loop, at module level. Fork allows that; two cores for four workers are few."""

import os
from time import sleep

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self, size=100):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        sleep(0.1)
        print(f"{os.getpid()} makes {index}")
        return torch.randn(3, 32, 32)


dataset = Noise(size=10)
loader = DataLoader(dataset, batch_size=2, num_workers=4, shuffle=True)  # finds: many-workers

for step, _batch in enumerate(loader):
    print(step)
    if step > 2:
        break
