"""A lock between processes around a read that needs none."""

import multiprocessing
import os

from torch.utils.data import Dataset


class Locked(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.names = os.listdir(folder)
        self.lock = multiprocessing.Lock()  # finds: shared-lock

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        path = os.path.join(self.folder, self.names[index])
        with self.lock, open(path, "rb") as file:
            return file.read()
