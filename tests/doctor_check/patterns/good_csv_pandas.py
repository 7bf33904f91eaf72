"""A table with image names and labels, as in many competitions."""

import os

import cv2
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset


class Leaves(Dataset):
    def __init__(self, frame, folder, transform=None):
        self.frame = frame.reset_index(drop=True)
        self.folder = folder
        self.labels = self.frame["label"].values
        self.names = self.frame["image_id"].tolist()
        self.transform = transform

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        image = cv2.imread(os.path.join(self.folder, self.names[idx]))
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if self.transform:
            image = self.transform(image=image)["image"]
        return image, torch.tensor(self.labels[idx]).long()


def run():
    table = pd.read_csv("train.csv")
    train = DataLoader(Leaves(table, "images"), batch_size=32, shuffle=True, num_workers=4, drop_last=True)
    valid = DataLoader(Leaves(table, "images"), batch_size=1, shuffle=False)
    for _ in train:
        pass
    for _ in valid:
        pass


if __name__ == "__main__":
    run()
