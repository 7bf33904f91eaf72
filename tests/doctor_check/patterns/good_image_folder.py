"""A class for each folder; a list of paths with labels."""

import os
from pathlib import Path

from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import VisionDataset

ENDINGS = (".jpg", ".png")


def open_image(path):
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


class FolderOfClasses(VisionDataset):
    def __init__(self, root, transform=None, target_transform=None, loader=open_image):
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.class_to_idx = {name: i for i, name in enumerate(self.classes)}
        self.loader = loader
        self.samples = []
        for name in self.classes:
            for folder, _, files in sorted(os.walk(Path(root) / name)):
                for file in sorted(files):
                    if file.lower().endswith(ENDINGS):
                        self.samples.append((os.path.join(folder, file), self.class_to_idx[name]))
        self.targets = [target for _, target in self.samples]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        sample = self.loader(path)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return sample, target


if __name__ == "__main__":
    for _ in DataLoader(FolderOfClasses("train"), batch_size=64, shuffle=True, num_workers=8, pin_memory=True):
        pass
