"""Locks and queues that come along with the dataset."""

import multiprocessing as mp
import threading
from multiprocessing import Queue

from torch.utils.data import Dataset


class ThreadLock(Dataset):
    def __init__(self, items):
        self.items = items
        self.lock = threading.Lock()  # finds: shared-lock

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        with self.lock:
            return self.items[index]


class OfContext(Dataset):
    def __init__(self, items):
        self.items = items
        self.guard = mp.get_context("spawn").RLock()  # finds: shared-lock
        self.queue = Queue()  # finds: shared-lock

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        self.guard.acquire()
        self.queue.put(index)
        self.guard.release()
        return self.items[index]
