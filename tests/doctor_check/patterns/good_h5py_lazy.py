"""HDF5, opened once in each worker; the length is read and the file closed at the start."""

import h5py
import torch
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, path):
        self.path = path
        self.file = None
        with h5py.File(path, "r") as file:
            self.length = len(file["images"])
            self.labels = file["labels"][:]

    def __len__(self):
        return self.length

    def _open(self):
        self.file = h5py.File(self.path, "r", swmr=True)

    def __getitem__(self, index):
        if self.file is None:
            self._open()
        return torch.from_numpy(self.file["images"][index]), self.labels[index]

    def __del__(self):
        if self.file is not None:
            self.file.close()


if __name__ == "__main__":
    for _ in DataLoader(Volumes("train.h5"), batch_size=16, num_workers=4):
        pass
