"""Training is over; a thread that uploads results waits for more of them, and the interpreter waits for it."""

import queue
import sys
import threading
import warnings
from pathlib import Path

from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])
RESULTS = queue.Queue()


def upload():
    while True:
        RESULTS.get()


if __name__ == "__main__":
    threading.Thread(target=upload, name="uploader").start()
    for batch in DataLoader(range(100), batch_size=4, num_workers=2):
        RESULTS.put(batch.sum())
    READY.touch()
