"""Datasets of `start.py`, in a module that workers and a new interpreter import, with the libraries that it needs."""

from __future__ import annotations

from typing import Any

import torch


class Plain(torch.utils.data.Dataset):
    """Numbers."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        return index


class Table(Plain):
    """Rows of a pandas table."""

    def __init__(self) -> None:
        import pandas as pd

        self.frame = pd.DataFrame({"x": range(256), "y": [str(i) for i in range(256)]})

    def __getitem__(self, index: int) -> Any:
        return int(self.frame.iloc[index]["x"])


class Augmented(Plain):
    """Images, changed by albumentations."""

    def __init__(self) -> None:
        import albumentations as A  # noqa: N812  as everybody calls it
        import numpy as np

        self.transform = A.Compose([A.HorizontalFlip(), A.RandomBrightnessContrast()])
        self.image = np.zeros((32, 32, 3), np.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.transform(image=self.image)["image"]


class Medical(Plain):
    """Arrays, changed by MONAI."""

    def __init__(self) -> None:
        from monai.transforms import Compose, RandFlip, ScaleIntensity

        self.transform = Compose([ScaleIntensity(), RandFlip(prob=0.5)])
        self.image = torch.arange(64.0).reshape(1, 8, 8)

    def __getitem__(self, index: int) -> Any:
        return torch.as_tensor(self.transform(self.image))


class Tuples(torch.utils.data.Dataset):
    """1.2 million paths and labels."""

    def __init__(self) -> None:
        folder = "/data/imagenet/train"
        self.samples = [(f"{folder}/n{i % 1000:08d}/n{i % 1000:08d}_{i:07d}.JPEG", i % 1000) for i in range(1_200_000)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return len(path) + label


def hugging_face() -> Any:
    """Return a table of Hugging Face datasets."""
    import datasets
    import pyarrow as pa

    # With a name: to make one of the contents, datasets 5.2 pickles more than can be pickled.
    rows = datasets.table.InMemoryTable(pa.table({"x": list(range(256))}))
    return datasets.Dataset(rows, fingerprint="rows").with_format("torch")


MAKERS = {
    "plain": Plain,
    "pandas": Table,
    "albumentations": Augmented,
    "datasets": hugging_face,
    "monai": Medical,
    "tuples": Tuples,
}
