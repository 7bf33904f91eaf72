"""What each rank runs in the test of ranks that read Parquet, started by torchrun: ``rank_rows.py FOLDER``.

Each rank writes the rows that it had to ``steps-RANK`` and what it logs to ``log-RANK``. A file ``sleep`` makes the
transform of the culprit stand still, once.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rank_programs import RANK, asked_for

import antifreeze as af

FOLDER = Path(sys.argv[1])
WAIT_AT = 10


def stand_still(row: Any) -> Any:
    """Do so if it was asked for."""
    if asked_for(FOLDER, "sleep"):
        time.sleep(600)
    return row


def wait_until_asked() -> None:
    """Wait until the test has asked for it, or it has begun: else the epoch could be over before."""
    end_s = time.monotonic() + 100
    while not any((FOLDER / name).exists() for name in ("sleep", "sleep-begun")) and time.monotonic() < end_s:
        time.sleep(0.02)


def main() -> None:
    logging.basicConfig(filename=FOLDER / f"log-{RANK}", level=logging.INFO)
    dist.init_process_group("gloo")
    dataset = af.StreamingDataset(str(FOLDER / "data"), columns=["n"], transform=stand_still)
    loader = af.StreamingDataLoader(dataset, batch_size=2, num_workers=2, stall_limit=2, prefetch_factor=2)
    with (FOLDER / f"steps-{RANK}").open("w", buffering=1) as steps:
        for number, batch in enumerate(loader):
            if number == WAIT_AT:
                wait_until_asked()
            dist.all_reduce(torch.ones(1))
            print(*batch["n"].tolist(), file=steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
