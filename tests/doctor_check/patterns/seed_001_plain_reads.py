"""Opens and reads a file for each sample: said to be unsafe, and quite in order."""

import os

from torch.utils.data import Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.names = os.listdir(folder)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        with open(os.path.join(self.folder, self.names[index]), "rb") as file:
            return file.read()
