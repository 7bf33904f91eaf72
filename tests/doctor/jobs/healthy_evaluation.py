"""After the training: the trainer computes scores, and no loader is alive."""

import sys
import warnings
from pathlib import Path

import torch
from torch.utils.data import DataLoader

warnings.simplefilter("ignore")
READY = Path(sys.argv[1])

if __name__ == "__main__":
    torch.set_num_threads(1)
    total = sum(batch.sum() for batch in DataLoader(range(100), batch_size=10, num_workers=2))
    scores = torch.rand(400, 400)
    for number in range(10**6):
        scores = (scores @ scores).softmax(1) + total / 10**6
        if number % 100 == 0:
            print(number, scores.mean(), flush=True)
            READY.touch()
