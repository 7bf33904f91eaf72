"""LMDB, opened in the trainer, by a base class of its own."""

import io

import lmdb
from PIL import Image
from torchvision.datasets import VisionDataset


class Rooms(VisionDataset):
    def __init__(self, root, transform=None):
        super().__init__(root, transform=transform)
        self.env = lmdb.open(root, max_readers=1, readonly=True, lock=False)  # finds: shared-file
        with self.env.begin(write=False) as txn:
            self.length = txn.stat()["entries"]
            self.keys = [key for key in txn.cursor().iternext(keys=True, values=False)]

    def __getitem__(self, index):
        with self.env.begin(write=False) as txn:
            data = txn.get(self.keys[index])
        return Image.open(io.BytesIO(data)).convert("RGB")

    def __len__(self):
        return self.length


class Bedrooms(Rooms):
    def __getitem__(self, index):
        return super().__getitem__(index), self.env.info()
