"""A disk that gives a few kilobytes at a time."""

import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
DATA = READY.with_suffix(".bin")


class Files(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        parts = []
        with DATA.open("rb", buffering=0) as file:
            while part := file.read(4096):
                parts.append(part)
                time.sleep(0.02)
        return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


if __name__ == "__main__":
    DATA.write_bytes(bytes(200_000))
    for step, batch in enumerate(DataLoader(Files(), batch_size=2, num_workers=2)):
        print(step, batch.shape, flush=True)
        if step == 1:
            READY.touch()
