"""What each rank runs in the tests of ranks, started by torchrun: ``rank_programs.py FOLDER``.

Each rank writes its process id to ``pid-RANK``, what it logs to ``log-RANK`` and the samples of each step to
``steps-RANK``. It goes on until there is a file ``stop``, and all end after the same step. A file ``sleep`` makes a
worker of the culprit stand still, once; a file ``hold`` makes the culprit itself hold the interpreter's lock, once,
until something comes out of the pipe ``gate``.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

import antifreeze as af

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CULPRIT = WORLD_SIZE // 2
NUM_SAMPLES = 600
STEP_S = 0.02


def asked_for(folder: Path, what: str) -> bool:
    """Tell whether something was asked for, to the first who asks: what was asked for is renamed."""
    if RANK != CULPRIT or not (folder / what).exists():
        return False
    try:
        (folder / what).rename(folder / f"{what}-begun")
    except FileNotFoundError:  # another worker was first
        return False
    return True


class Numbers(Dataset[int]):
    """Gives back each number."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, i: int) -> int:
        if asked_for(self.folder, "sleep"):
            time.sleep(600)
        return i


class Endless:
    """This rank's numbers, again and again."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(RANK, NUM_SAMPLES, WORLD_SIZE))


def hold_the_interpreter(gate: Path) -> None:
    """Wait in native code that does not let other threads run, as badly written extensions do."""
    fd = os.open(gate, os.O_RDWR)
    ctypes.PyDLL(None).read(fd, ctypes.create_string_buffer(1), 1)
    os.close(fd)


def train(folder: Path) -> None:
    # Few batches ahead, or a worker that stands still is replaced before anybody has to wait for it.
    ahead = {"num_workers": 2, "prefetch_factor": 2}
    loader = af.DataLoader(Numbers(folder), batch_size=2, sampler=Endless(), stall_limit=2, **ahead)
    with (folder / f"steps-{RANK}").open("w", buffering=1) as steps:
        for batch in loader:
            over = torch.tensor([int((folder / "stop").exists())])
            dist.all_reduce(over)
            print(*batch.tolist(), file=steps)
            if over.item():
                break
            if asked_for(folder, "hold"):
                hold_the_interpreter(folder / "gate")
            time.sleep(STEP_S)


def main() -> None:
    folder = Path(sys.argv[1])
    logging.basicConfig(filename=folder / f"log-{RANK}", format="%(created).3f %(message)s", level=logging.INFO)
    (folder / f"pid-{RANK}").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    train(folder)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
