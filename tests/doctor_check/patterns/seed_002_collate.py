# facts: start_method=spawn
"""A collate function of the module can be sent anywhere; only the guard is missing."""

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, size=10):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)


def put_together(batch):
    return torch.stack(batch)


dataset = Numbers(size=20)
loader = DataLoader(dataset, batch_size=2, num_workers=4, collate_fn=put_together)

for step, _ in enumerate(loader):  # finds: main-guard
    print(step)
