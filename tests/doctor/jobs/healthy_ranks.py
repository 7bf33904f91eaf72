"""Two ranks that meet in every step, the second of them slower if it is told to."""

import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


class Numbers(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, index):
        time.sleep(0.05)
        return index


def train(rank):
    dist.init_process_group("gloo", init_method=f"file://{READY}.meet", rank=rank, world_size=2)
    for step, batch in enumerate(DataLoader(Numbers(), batch_size=2, num_workers=1)):
        if rank == 1:
            time.sleep(float(os.environ.get("SLOW_RANK_SECONDS", "0")))
        dist.all_reduce(batch)
        print(rank, step, flush=True)
        READY.touch()


if __name__ == "__main__":
    torch.multiprocessing.spawn(train, nprocs=2)
