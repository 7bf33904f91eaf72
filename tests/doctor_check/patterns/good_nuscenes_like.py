"""Sweeps by tokens of a database object that lives in memory."""

from nuscenes.nuscenes import NuScenes
from torch.utils.data import Dataset


class Sweeps(Dataset):
    def __init__(self, version, root):
        self.nusc = NuScenes(version=version, dataroot=root, verbose=False)
        self.tokens = [sample["token"] for sample in self.nusc.sample]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        sample = self.nusc.get("sample", self.tokens[index])
        lidar = self.nusc.get("sample_data", sample["data"]["LIDAR_TOP"])
        return lidar["filename"], sample["timestamp"]
