"""A worker touches a page of memory that another part of the program should fill when it is touched, and does not."""

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
USERFAULTFD = {"x86_64": 323, "aarch64": 282}[platform.machine()]
USER_MODE_ONLY, API, REGISTER, MISSING = 1, 0xC018AA3F, 0xC020AA00, 1


def lazy_page():
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fd = ctypes.CDLL(None).syscall(USERFAULTFD, os.O_CLOEXEC | USER_MODE_ONLY)
    fcntl.ioctl(fd, API, bytearray(struct.pack("<QQQ", 0xAA, 0, 0)))
    fcntl.ioctl(fd, REGISTER, bytearray(struct.pack("<QQQQ", address, mmap.PAGESIZE, MISSING, 0)))
    return page


class Lazy(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == 80:
            page = lazy_page()
            READY.touch()
            return page[0]
        return index


if __name__ == "__main__":
    for batch in DataLoader(Lazy(), batch_size=4, num_workers=2):
        print(batch)
