"""Two ranks under torchrun: rank 1 has fewer batches and waits for the checkpoint that rank 0 never gets to write."""

import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def train(rank):
    dist.init_process_group("gloo")
    for batch in DataLoader(range(100 - 20 * rank), batch_size=2, num_workers=1):
        loss = batch.float().mean()
        dist.all_reduce(loss)
    checkpoint = READY.with_suffix(".pt")
    if rank == 0:
        torch.save(loss, checkpoint)
    READY.touch()
    while not checkpoint.exists():
        time.sleep(0.5)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]))
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        os.execv(sys.executable, [sys.executable, *launch, *sys.argv])
