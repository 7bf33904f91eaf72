"""A thread of the trainer is writing a log when the workers are forked: the C lock of the writer stays taken."""

import io
import sys
import threading
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
WRITING = threading.Event()


class SlowDisk(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        WRITING.set()
        time.sleep(1)
        return len(data)


LOG = io.BufferedWriter(SlowDisk(), buffer_size=64)


def log_for_ever():
    while True:
        LOG.write(b"x" * 100)


class Logged(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        READY.touch()
        LOG.write(b"sample %d\n" % index)
        return index


if __name__ == "__main__":
    threading.Thread(target=log_for_ever, daemon=True).start()
    WRITING.wait(60)
    for batch in DataLoader(Logged(), batch_size=4, num_workers=2):
        print(batch)
