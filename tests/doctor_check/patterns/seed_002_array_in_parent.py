# facts: python=3.14
"""A NumPy array is shared by forked workers. With the default of Python 3.14 the loop needs a main guard."""

import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, size=100):
        self.size = size
        self.large = np.random.rand(1000, 1000)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.from_numpy(self.large[index % 10])


dataset = Rows(size=20)
loader = DataLoader(dataset, batch_size=2, num_workers=4)

for step, _batch in enumerate(loader):  # finds: main-guard
    if step > 1:
        break
