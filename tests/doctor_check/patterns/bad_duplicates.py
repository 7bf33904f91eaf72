"""Every worker gives everything."""

import tarfile

from torch.utils.data import DataLoader, IterableDataset


class Counter(IterableDataset):
    def __iter__(self):  # finds: duplicates
        return iter(range(32))


class Tars(IterableDataset):
    def __init__(self, urls):
        self.urls = urls

    def __iter__(self):  # finds: duplicates
        for url in self.urls:
            with tarfile.open(url) as tar:
                for member in tar:
                    yield tar.extractfile(member).read()


class Alone(IterableDataset):
    def __iter__(self):
        return iter(range(32))


first = DataLoader(Counter(), batch_size=4, num_workers=2)
second = DataLoader(Tars(["a.tar"]), batch_size=4, num_workers=4)
third = DataLoader(Alone(), batch_size=4, num_workers=1)
