"""Functions without a name cannot be sent to new interpreters."""

import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

mp.set_start_method("spawn")


class Scaled(Dataset):
    def __init__(self, data, transform=None):
        self.data = data
        self.transform = transform
        self.scale = lambda x: x / 255  # finds: not-picklable

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.scale(self.data[index])


def main():
    def collate(batch):
        return batch

    first = DataLoader(Scaled([1]), batch_size=8, num_workers=2, collate_fn=collate)  # finds: not-picklable
    second = DataLoader(
        Scaled([1], transform=lambda x: x),  # finds: not-picklable
        batch_size=8,
        num_workers=2,
        worker_init_fn=lambda worker: None,  # finds: not-picklable
    )
    third = DataLoader(Scaled([1]), batch_size=8, collate_fn=lambda batch: batch)
    return first, second, third


if __name__ == "__main__":
    main()
