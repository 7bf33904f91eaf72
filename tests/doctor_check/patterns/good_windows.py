"""Windows of a time series."""

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, path, length=96, horizon=24):
        frame = pd.read_csv(path)
        values = frame[frame.columns[1:]].values.astype(np.float32)
        self.mean, self.std = values.mean(0), values.std(0)
        self.values = (values - self.mean) / self.std
        self.length, self.horizon = length, horizon
        self.indices = list(range(len(self.values) - length - horizon + 1))

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        start = self.indices[index]
        end = start + self.length
        return torch.from_numpy(self.values[start:end]), torch.from_numpy(self.values[end : end + self.horizon])


loader = DataLoader(Windows("ett.csv"), batch_size=32, shuffle=True, num_workers=2, drop_last=True)
