"""The None comes from a method whose result is returned, or from a test of what was read."""

import cv2
from torch.utils.data import Dataset


class Helped(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self._load(self.paths[index])

    def _load(self, path):
        image = cv2.imread(path)
        if image is None:
            return None  # finds: none-sample
        return image


class Bare(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        try:
            with open(str(index)) as file:
                return file.read()
        except OSError as error:
            print(error)
            return  # finds: none-sample
