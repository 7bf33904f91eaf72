# /// script
# requires-python = ">=3.11"
# dependencies = ["antifreeze[torch]"]
# ///
"""A dataset with a broken sample and one that crashes its process: leave them out, and read what was left out."""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset

import antifreeze as af


class Files(Dataset[torch.Tensor]):
    """Stands for a folder of files, some of which are damaged."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, i: int) -> torch.Tensor:
        if i % 100 == 7:
            raise ValueError(f"file {i} is cut off")
        if i == 42:
            os.kill(os.getpid(), signal.SIGSEGV)  # as a bug in a native decoder would
        return torch.full((8,), float(i))


def ask(error: af.AntifreezeError) -> str:
    """Leave out what cannot be decoded; anything else is an error of ours."""
    return "skip" if isinstance(error, ValueError) else "raise"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=400)
    options = parser.parse_args()
    dataset = Files(options.samples)

    # The default: the first bad sample is an error. It names the sample, and it is still a ValueError.
    try:
        list(af.DataLoader(dataset, batch_size=16, num_workers=2))
    except ValueError as error:
        print(error, "\n")

    # A function decides about each: the crash of sample 42 is not a ValueError, so it is raised.
    try:
        list(af.DataLoader(dataset, batch_size=16, num_workers=2, on_error=ask))
    except af.WorkerDied as error:
        print(error, "\n")

    # "skip" leaves out both kinds. A crash is tried twice before that, for it might have been the machine's fault.
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "skipped.jsonl")
        loader = af.DataLoader(dataset, batch_size=16, num_workers=2, on_error="skip", skip_log=log)
        found = torch.cat([batch[:, 0] for batch in loader]).tolist()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    loader.report()
    print(f"\n{len(found)} of {options.samples} samples came; the log has {len(lines)} lines, the first is {lines[0]}")
    assert len(found) + len(lines) == options.samples


if __name__ == "__main__":
    main()
