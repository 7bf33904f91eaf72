"""Tensors that are there already."""

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

x, y = torch.randn(1000, 10), torch.randint(0, 2, (1000,))
train = Subset(TensorDataset(x, y), range(800))
more = ConcatDataset([train, TensorDataset(x, y)])
loader = DataLoader(more, batch_size=64, shuffle=True)
for xb, yb in loader:
    print(xb.shape, yb.shape)
