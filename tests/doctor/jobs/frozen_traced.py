"""A debugger is attached to a worker, and whoever has attached it is gone for lunch."""

import ctypes
import os
import subprocess
import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
DEBUGGER = """
import ctypes, pathlib, sys, time
attach = 16
ctypes.CDLL(None, use_errno=True).ptrace(attach, int(sys.argv[1]), 0, 0)
while "tracing stop" not in pathlib.Path(f"/proc/{sys.argv[1]}/status").read_text():
    time.sleep(0.01)
pathlib.Path(sys.argv[2]).touch()
time.sleep(1000)
"""
ANYBODY = 0x59616D61, ctypes.c_ulong(-1)  # where Yama asks: anybody may attach to this process


class Numbers(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 13:
            ctypes.CDLL(None).prctl(*ANYBODY)
            subprocess.Popen([sys.executable, "-c", DEBUGGER, str(os.getpid()), str(READY)])
            while True:
                sum(range(1000))
        return torch.tensor(index)


if __name__ == "__main__":
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
        print(batch)
