"""Images with masks of the same name."""

from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split


class Masks(Dataset):
    def __init__(self, images_dir, masks_dir, scale=1.0):
        self.images_dir, self.masks_dir, self.scale = Path(images_dir), Path(masks_dir), scale
        self.ids = [path.stem for path in self.images_dir.iterdir() if not path.name.startswith(".")]
        if not self.ids:
            raise RuntimeError(f"nothing in {images_dir}")

    def __len__(self):
        return len(self.ids)

    @staticmethod
    def load(path):
        if path.suffix == ".npy":
            return Image.fromarray(np.load(path))
        return Image.open(path)

    def __getitem__(self, idx):
        name = self.ids[idx]
        (mask_file,) = self.masks_dir.glob(name + ".*")
        (image_file,) = self.images_dir.glob(name + ".*")
        return {"image": np.asarray(self.load(image_file)), "mask": np.asarray(self.load(mask_file))}


def train():
    dataset = Masks("imgs", "masks")
    train_set, val_set = random_split(dataset, [0.9, 0.1])
    options = dict(batch_size=4, num_workers=4, pin_memory=True)
    train_loader = DataLoader(train_set, shuffle=True, **options)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **options)
    for _ in train_loader:
        pass
    for _ in val_loader:
        pass


if __name__ == "__main__":
    train()
