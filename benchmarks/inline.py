"""What a batch costs without workers: ``antifreeze.DataLoader`` beside torch's, with a dataset that does nothing.

python benchmarks/inline.py                  # batch sizes 1 and 64, in order and shuffled
python benchmarks/inline.py --rounds 20      # a look

Both loaders take a slice of an epoch in turn, hundreds of times, in one process. The fastest slice of each counts: what
else the machine does only adds to the others.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch.utils.data as tud

import antifreeze as af

_BATCHES, _SLICES = 50, 20


class Numbers(tud.Dataset[int]):
    """Costs nothing."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def slices(kind: Any, batch_size: int, shuffle: bool) -> Iterator[float]:
    """Yield the seconds for a batch, slice after slice."""
    loader = kind(Numbers(batch_size * _BATCHES * _SLICES + 1), batch_size=batch_size, shuffle=shuffle)
    while True:
        batches = iter(loader)
        next(batches)
        for _ in range(_SLICES):
            began_s = time.perf_counter()
            for _ in itertools.islice(batches, _BATCHES):
                pass
            yield (time.perf_counter() - began_s) / _BATCHES


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    print("| batch size | order | torch, µs | antifreeze, µs | difference, µs | ratio |")
    print("|---|---|---|---|---|---|")
    for batch_size, shuffle in itertools.product((1, 64), (False, True)):
        theirs, ours = (slices(kind, batch_size, shuffle) for kind in (tud.DataLoader, af.DataLoader))
        pairs = [(next(theirs) * 1e6, next(ours) * 1e6) for _ in range(rounds)]
        one, other = (min(values) for values in zip(*pairs, strict=True))
        order = "shuffled" if shuffle else "in order"
        print(f"| {batch_size} | {order} | {one:.1f} | {other:.1f} | {other - one:+.1f} | {other / one:.2f} |")


if __name__ == "__main__":
    main()
