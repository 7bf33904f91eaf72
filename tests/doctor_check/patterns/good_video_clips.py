"""Clips of videos; each is opened, read and closed for its sample, and another is tried a few times."""

import random

import decord
import torch
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, listing, frames=16, tries=10):
        self.frames, self.tries = frames, tries
        with open(listing) as file:
            self.videos = [line.strip().split(",") for line in file]

    def __len__(self):
        return len(self.videos)

    def __getitem__(self, index):
        for _ in range(self.tries):
            path, label = self.videos[index]
            try:
                reader = decord.VideoReader(path, num_threads=1)
                clip = reader.get_batch(range(self.frames)).asnumpy()
                return torch.from_numpy(clip), int(label)
            except RuntimeError:
                index = random.randint(0, len(self) - 1)
        raise RuntimeError(f"{self.tries} videos in a row cannot be read")


if __name__ == "__main__":
    for clip, _label in DataLoader(Clips("train.csv"), batch_size=8, num_workers=8):
        print(clip.shape)
