"""HDF5, read whole: what is kept is an array."""

import h5py
import numpy as np
from torch.utils.data import Dataset


class InMemory(Dataset):
    def __init__(self, path):
        file = h5py.File(path, "r")
        self.images = np.array(file["images"])
        self.labels = file["labels"][:]
        self.names = h5py.File(path, "r")["names"][()]
        file.close()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index], self.names[index]
