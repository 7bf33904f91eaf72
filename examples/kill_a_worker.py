# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""In mid-epoch one worker process is killed and one is stopped. Every sample arrives once, with the same bytes."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import antifreeze as af


class Noisy(Dataset[dict[str, Any]]):
    """Rows of a table, with random noise on them."""

    def __init__(self, samples: int) -> None:
        self.table = np.random.default_rng(0).random((samples, 256))  # all workers share one copy of it

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: int) -> dict[str, Any]:
        time.sleep(0.001)  # stands for the work of a real dataset
        return {"sample": i, "x": self.table[i] + np.random.rand(256), "pid": os.getpid()}


def run(loader: af.DataLoader, faults: dict[int, signal.Signals]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what arrived. At some batches, the process that made their first sample gets a signal."""
    found = []
    for step, batch in enumerate(loader):
        found.append((batch["sample"], batch["x"]))
        if step in faults:
            pid = int(batch["pid"][0])
            time.sleep(0.003)  # by now it is at another batch
            print(f"batch {step}: {faults[step].name} to process {pid}", flush=True)
            os.kill(pid, faults[step])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_600)
    options = parser.parse_args()
    dataset, steps = Noisy(options.samples), options.samples // 16

    def make(num_workers: int) -> af.DataLoader:
        order = torch.Generator().manual_seed(0)
        return af.DataLoader(
            dataset, batch_size=16, shuffle=True, generator=order, num_workers=num_workers, stall_limit=2
        )

    expected = run(make(0), {})  # in this process, without workers
    loader = make(3)
    found = run(loader, {steps // 4: signal.SIGKILL, steps // 2: signal.SIGSTOP})
    print(flush=True)
    loader.report()

    samples = torch.cat([sample for sample, _ in found]).tolist()
    assert sorted(samples) == list(range(options.samples)), "a sample is missing, or came twice"
    assert all(all(map(torch.equal, one, other)) for one, other in zip(found, expected, strict=True))
    print(f"\n{len(samples):,} samples: each came once, in the same order and with the same noise as without workers")


if __name__ == "__main__":
    main()
