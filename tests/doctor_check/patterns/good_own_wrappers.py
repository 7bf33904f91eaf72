"""Subset and ConcatDataset, written again."""

import bisect
import itertools

from torch.utils.data import Dataset


class Part(Dataset):
    def __init__(self, dataset, indices):
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices):
        return [self.dataset[self.indices[i]] for i in indices]

    def __len__(self):
        return len(self.indices)


class Joined(Dataset):
    def __init__(self, datasets):
        self.datasets = list(datasets)
        self.ends = list(itertools.accumulate(len(dataset) for dataset in self.datasets))

    def __len__(self):
        return self.ends[-1]

    def __getitem__(self, index):
        if index < 0:
            if -index > len(self):
                raise ValueError("out of range")
            index += len(self)
        which = bisect.bisect_right(self.ends, index)
        return self.datasets[which][index - (self.ends[which - 1] if which else 0)]
