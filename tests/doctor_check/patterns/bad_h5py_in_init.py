"""HDF5, opened in the trainer."""

import h5py
import torch
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r")  # finds: shared-file
        self.length = len(self.file["images"])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.from_numpy(self.file["images"][index])


class OfOneTable(Dataset):
    def __init__(self, path):
        self.images = h5py.File(path, "r")["images"]  # finds: shared-file

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


class OfManyFiles(Dataset):
    def __init__(self, paths):
        self.files = [h5py.File(path, "r") for path in paths]  # finds: shared-file

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.files[index]["x"][:]


loader = DataLoader(Volumes("train.h5"), batch_size=16, num_workers=4)
