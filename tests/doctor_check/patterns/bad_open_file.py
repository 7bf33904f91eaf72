"""One position for all workers: plain files, archives, and a method that opens."""

import gzip
import struct
import tarfile
import zipfile
from pathlib import Path

from torch.utils.data import Dataset


class Records(Dataset):
    def __init__(self, path):
        file = open(path, "rb")  # finds: shared-file
        self.file = file

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.file.seek(index * 8)
        return struct.unpack("q", self.file.read(8))[0]


class Zipped(Dataset):
    def __init__(self, path):
        self.path = path
        self._prepare()

    def _prepare(self):
        self.archive = zipfile.ZipFile(self.path)  # finds: shared-file
        self.names = self.archive.namelist()

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self._read(self.names[index])

    def _read(self, name):
        return self.archive.read(name)


class Tarred(Dataset):
    def __init__(self, path, lines):
        self.tar = tarfile.open(path)  # finds: shared-file
        self.lines = gzip.open(lines, "rt")  # finds: shared-file
        self.notes = Path(path).with_suffix(".txt").open("rb")
        self.more = Path(path).open()  # finds: shared-file
        self.members = self.tar.getmembers()

    def __len__(self):
        return len(self.members)

    def __getitem__(self, index):
        return self.tar.extractfile(self.members[index]).read(), self.lines.readline(), self.more.read()
