"""Slow, one worker, and never frozen."""

import time

import torch.utils.data as data


class Slow(data.Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, index):
        time.sleep(0.1)
        return index


loader = data.DataLoader(Slow(), batch_size=100, num_workers=1)

for _batch in loader:
    pass
