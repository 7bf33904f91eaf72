"""Errors are told, with the sample; cleaning up is no reason to return."""

from PIL import Image
from torch.utils.data import Dataset


class Told(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        try:
            image = Image.open(path)
        except FileNotFoundError:
            image = Image.new("RGB", (224, 224))
        except OSError as error:
            raise RuntimeError(f"sample {index}: {path}") from error
        try:
            return image.convert("RGB")
        finally:
            image.close()
