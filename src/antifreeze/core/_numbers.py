"""Numbers in text that others have written (environment variables, files of the kernel), and seeds of steps."""

from __future__ import annotations

import functools
import math

_WORD = (1 << 64) - 1
_MAX_DIGITS = 19
"""No number that the kernel or a launcher writes has more; Python refuses to read one of thousands."""


def natural(text: str) -> int | None:
    """Return the number that a text of ASCII digits is, blanks around it aside; None for any other text.

    Not ``str.isdigit``: it is true for ``"²"``, which is no number, and for digits of every script.
    """
    text = text.strip()
    return int(text) if 0 < len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


def seconds(text: str, default: float) -> float:
    """Return the number of seconds that a text is, or a default if it is none."""
    try:
        found = float(text)
    except ValueError:
        return default
    return found if 0 <= found < math.inf else default


def step_seed(seed: int, epoch: int, step: int) -> int:
    """Return the seed of the random numbers that user code sees in a step.

    Here, because workers need it and nothing else of the plan.

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
