"""Decoders that were opened in the trainer, kept by name."""

import cv2
import decord
from torch.utils.data import Dataset


class Frames(Dataset):
    def __init__(self, paths):
        self.readers = {path: decord.VideoReader(path) for path in paths}  # finds: shared-file
        self.paths = list(paths)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.readers[self.paths[index]][0]


class Film(Dataset):
    def __init__(self, path):
        self.film = cv2.VideoCapture(path)  # finds: shared-file
        self.length = int(self.film.get(cv2.CAP_PROP_FRAME_COUNT))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.film.set(cv2.CAP_PROP_POS_FRAMES, index)
        ok, frame = self.film.read()
        if not ok:
            raise RuntimeError(f"frame {index}")
        return frame
