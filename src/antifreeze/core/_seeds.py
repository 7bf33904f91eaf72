"""Seeds that belong to a step. Here, because workers need them and nothing else of the plan."""

from __future__ import annotations

import functools

_WORD = (1 << 64) - 1


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Return the seed of the random numbers that user code sees in a step.

    Not Philox: it is asked for every batch, and making a generator of NumPy's takes longer than sending a small batch.
    """
    return _mixed(_of_epoch(seed, epoch) ^ step) >> 1  # torch wants it to fit a signed number


@functools.lru_cache(maxsize=64)
def _of_epoch(seed: int, epoch: int) -> int:
    return _mixed(_mixed(seed) ^ epoch)


def _mixed(number: int) -> int:
    """Return a number in which every bit depends on every bit of the given one: the finalizer of splitmix64."""
    number = (number + 0x9E3779B97F4A7C15) & _WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _WORD
    return number ^ (number >> 31)
