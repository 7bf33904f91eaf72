"""An open file is fine in the one process that opened it, and that is what num_workers=0 says."""

import struct

from torch.utils.data import DataLoader, Dataset


class Records(Dataset):
    def __init__(self, path):
        self.file = open(path, "rb")

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.file.seek(index * 8)
        return struct.unpack("q", self.file.read(8))[0]


loader = DataLoader(Records("numbers.bin"), batch_size=100, num_workers=0)
