"""Tiny epochs with spawned workers: the job mostly starts and ends processes."""

import sys
import warnings
from pathlib import Path

from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])

if __name__ == "__main__":
    for epoch in range(10**6):
        for batch in DataLoader(range(8), batch_size=2, num_workers=2, multiprocessing_context="spawn"):
            print(epoch, batch, flush=True)
        READY.touch()
