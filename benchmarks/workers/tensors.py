"""Datasets of torch tensors, derived from torch's class, as most people write them."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from workers.plain import ENDLESS


class Tensors(Dataset):
    """Samples that are ready: a few tensors in memory, handed out again and again."""

    def __init__(self, shape: tuple[int, ...], num_ready: int = 8) -> None:
        numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
        self._ready = [numbers + number for number in range(num_ready)]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._ready[index % len(self._ready)]


class FreshTensors(Tensors):
    """Samples that are made when they are asked for, as by any transform: a new tensor each."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._ready[index % len(self._ready)].clone()
