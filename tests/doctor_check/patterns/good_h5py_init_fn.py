"""HDF5, opened by worker_init_fn."""

import h5py
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Opened(Dataset):
    def __init__(self, path):
        self.path = path
        self.file = h5py.File(path, "r")
        self.length = len(self.file["x"])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.file["x"][index]


def reopen(_):
    dataset = get_worker_info().dataset
    dataset.file = h5py.File(dataset.path, "r")


loader = DataLoader(Opened("x.h5"), batch_size=8, num_workers=2, worker_init_fn=reopen)
