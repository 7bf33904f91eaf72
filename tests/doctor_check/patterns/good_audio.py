"""Spoken words: a table of files, decoded when asked for."""

import csv
import os

import torchaudio
from torch.utils.data import Dataset


class Speech(Dataset):
    def __init__(self, root, table="train.tsv"):
        self._path = root
        with open(os.path.join(root, table)) as file:
            walker = csv.reader(file, delimiter="\t")
            self._header = next(walker)
            self._walker = list(walker)

    def __getitem__(self, n):
        line = self._walker[n]
        waveform, rate = torchaudio.load(os.path.join(self._path, "clips", line[1]))
        return waveform, rate, dict(zip(self._header, line, strict=True))

    def __len__(self):
        return len(self._walker)
