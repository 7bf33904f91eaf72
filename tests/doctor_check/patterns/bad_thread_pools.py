"""Pools whose threads stay in the trainer: in the dataset, and in the module."""

from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader, Dataset

POOL = ThreadPoolExecutor(2)  # finds: shared-thread


class Pooled(Dataset):
    def __init__(self, items):
        self.items = items
        self.pool = ThreadPoolExecutor(4)  # finds: shared-thread

    def __len__(self):
        return len(self.items)

    def work(self, index):
        return POOL.submit(lambda: self.items[index]).result()

    def __getitem__(self, index):
        return self.pool.submit(self.work, index).result()


if __name__ == "__main__":
    POOL.submit(int).result()
    for _ in DataLoader(Pooled([1, 2]), batch_size=2, num_workers=2):
        pass
