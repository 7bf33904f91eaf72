"""A library sleeps in native code and keeps the interpreter's lock all the while."""

import ctypes
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
LIBRARY = ctypes.PyDLL(None)


class Camera(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        READY.touch()
        LIBRARY.sleep(10**6)
        return index


if __name__ == "__main__":
    for batch in DataLoader(Camera(), batch_size=4, num_workers=1):
        print(batch)
