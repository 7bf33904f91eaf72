"""Point clouds with calibration, by frame number."""

from pathlib import Path

import numpy as np
from torch.utils.data import Dataset


class Drives(Dataset):
    def __init__(self, root, split="training"):
        self.root = Path(root) / split
        self.ids = [f"{i:06d}" for i in range(7481)]
        self.test = split == "testing"

    def __len__(self):
        return len(self.ids)

    def calibration(self, name):
        with (self.root / "calib" / f"{name}.txt").open() as file:
            pairs = [line.split(":", 1) for line in file if ":" in line]
        return {key: np.array(value.split(), dtype=np.float32) for key, value in pairs}

    def __getitem__(self, index):
        name = self.ids[index]
        points = np.fromfile(self.root / "velodyne" / f"{name}.bin", dtype=np.float32).reshape(-1, 4)
        if self.test:
            return points, self.calibration(name), None
        return points, self.calibration(name), np.loadtxt(self.root / "label_2" / f"{name}.txt", dtype=str)
