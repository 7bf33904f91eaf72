"""An iterable dataset that passes on what another one gives, which may know about workers itself."""

from torch.utils.data import DataLoader, IterableDataset


class Mapped(IterableDataset):
    def __init__(self, source, function):
        self.source, self.function = source, function

    def __iter__(self):
        for sample in self.source:
            yield self.function(sample)


def make(stream, function):
    return DataLoader(Mapped(stream, function), batch_size=16, num_workers=4)
