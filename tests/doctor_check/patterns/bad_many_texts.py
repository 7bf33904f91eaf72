"""A million texts, in a class that is a dataset by its methods."""

from torch.utils.data import DataLoader

COUNT = 1_000_000


class DS:
    def __init__(self):
        self.data = [f"{i:0100d}" for i in range(COUNT)]  # finds: python-list

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return int(self.data[index][-9:])


if __name__ == "__main__":
    for _ in DataLoader(DS(), batch_size=2000, num_workers=2):
        pass
