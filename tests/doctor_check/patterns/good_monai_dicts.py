"""A list of dicts for a few hundred volumes."""

from monai.data import CacheDataset, DataLoader
from torch.utils.data import Dataset


class Volumes(Dataset):
    def __init__(self, images, labels, transform=None):
        self.data = [{"image": image, "label": label} for image, label in zip(images, labels, strict=True)]
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        item = dict(self.data[index])
        return self.transform(item) if self.transform else item


def make(images, labels):
    cached = CacheDataset(Volumes(images, labels).data)
    return DataLoader(Volumes(images, labels), batch_size=2, num_workers=4), DataLoader(cached, batch_size=2)
