"""Bytes of a file as one tensor."""

import gzip

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, images, labels, transform=None):
        with gzip.open(images, "rb") as file:
            self.images = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28).copy())
        with gzip.open(labels, "rb") as file:
            self.labels = torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=8).copy())
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image, label = self.images[index].float() / 255, int(self.labels[index])
        return (self.transform(image) if self.transform else image), label


train_loader = DataLoader(Digits("images.gz", "labels.gz"), batch_size=128, shuffle=True, num_workers=2)
test_loader = DataLoader(Digits("t10k.gz", "t10k-labels.gz"), batch_size=1000)

for epoch in range(3):
    for images, _labels in train_loader:
        print(epoch, images.shape)
