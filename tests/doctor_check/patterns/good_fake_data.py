"""Random images, the same for an index each time."""

import torch
from torch.utils.data import DataLoader, Dataset


class Fakes(Dataset):
    def __init__(self, size=1000, shape=(3, 224, 224), classes=10, offset=0):
        self.size, self.shape, self.classes, self.offset = size, shape, classes, offset

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(f"{index} of {len(self)}")
        state = torch.get_rng_state()
        torch.manual_seed(index + self.offset)
        image, target = torch.randn(*self.shape), torch.randint(0, self.classes, (1,))[0]
        torch.set_rng_state(state)
        return image, target.item()

    def __len__(self):
        return self.size


def train(loader):
    for image, target in loader:
        print(image, target)


if __name__ == "__main__":
    train(DataLoader(Fakes(), batch_size=32, num_workers=4, persistent_workers=True, prefetch_factor=4))
