"""Tries again for ever, in four ways."""

import itertools
import random
import time

from PIL import Image
from torch.utils.data import Dataset


def fetch(path):
    while True:  # finds: endless-retry
        try:
            return Image.open(path)
        except OSError:
            time.sleep(1)


class Again(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return fetch(self.paths[index])


class Another(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        while True:  # finds: endless-retry
            try:
                image = Image.open(self.paths[index])
                break
            except Exception:
                index = random.randint(0, len(self) - 1)
                continue
        return image


class Flagged(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = None
        while image is None:  # finds: endless-retry
            try:
                image = Image.open(self.paths[index])
            except OSError:
                pass
        for _ in itertools.count():  # finds: endless-retry
            try:
                return image.convert("RGB")
            except OSError:
                continue
        raise AssertionError
