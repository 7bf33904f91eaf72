"""A broken image becomes None, by falling out of the function."""

import logging
import os

from PIL import Image
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger(__name__)


class Folder(Dataset):
    def __init__(self, root):
        self.paths = sorted(os.path.join(root, name) for name in os.listdir(root))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        try:
            image = Image.open(self.paths[index]).convert("RGB")
            return image
        except OSError:  # finds: none-sample
            log.warning("cannot read %s", self.paths[index])


def main():
    for _ in DataLoader(Folder("train"), batch_size=32, num_workers=4):
        pass


if __name__ == "__main__":
    main()
