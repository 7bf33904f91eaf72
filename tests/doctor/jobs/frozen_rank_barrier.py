"""Two ranks that were started by hand: one has ended its epoch and stands at a barrier, the other trains on."""

import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])


def train(rank):
    dist.init_process_group("gloo")
    for batch in DataLoader(range(60 + 20 * rank), batch_size=2, num_workers=1):
        gathered = [torch.zeros_like(batch) for _ in range(2)] if rank == 0 else None
        dist.gather(batch, gathered, dst=0)
        dist.broadcast(batch, src=0)
    READY.touch()
    dist.barrier()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        with socket.create_server(("127.0.0.1", 0)) as free:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE="2")
        other = subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": "1"})
        os.environ["RANK"] = "0"
    train(int(os.environ["RANK"]))
