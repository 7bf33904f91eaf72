"""Two ranks of one launcher: a worker of rank 1 sleeps for ever, and rank 0 waits for rank 1 in a collective."""

import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Part(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if (self.rank, index) == (1, 20):
            READY.touch()
            time.sleep(10**6)
        return index


def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{READY}.meet", rank=rank, world_size=2)
    for batch in DataLoader(Part(rank), batch_size=2, num_workers=1):
        dist.all_reduce(batch)


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
