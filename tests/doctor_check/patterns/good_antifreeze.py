# facts: start_method=spawn shm=64
"""What antifreeze heals: no main guard, a lambda, a lock, Polars in the trainer, a small /dev/shm."""

import threading

import antifreeze as af
import polars as pl


class Frames:
    def __init__(self, path):
        self.frame = pl.read_parquet(path)
        self.lock = threading.Lock()

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        with self.lock:
            return self.frame.row(index)


loader = af.DataLoader(Frames("a.parquet"), batch_size=8, num_workers=4, collate_fn=lambda batch: batch)
for batch in loader:
    print(batch)
