"""Datasets that need no torch. A worker that runs one of these has no reason to import it."""

from __future__ import annotations

import time

import numpy as np

ENDLESS = 1 << 40


class Ints:
    """An int for each index: nothing to make, nothing to send."""

    def __init__(self, num_samples: int = ENDLESS) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        return index


class Spin:
    """A pure Python loop for each sample, of `loops` rounds: what an augmentation without native code costs."""

    def __init__(self, loops: int) -> None:
        self._loops = loops

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> int:
        value = index
        for _ in range(self._loops):
            value = (value * 1103515245 + 12345) & 0x7FFFFFFF
        return value


class Sleep:
    """Waits for each sample, as a slow disk or a bucket makes people wait."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> int:
        time.sleep(self._seconds)
        return index


class Arrays:
    """Samples that are ready: views of a few arrays in memory. What is measured is the way to the trainer."""

    def __init__(self, shape: tuple[int, ...], num_ready: int = 8) -> None:
        numbers = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        self._ready = [numbers + number for number in range(num_ready)]

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, index: int) -> np.ndarray:
        return self._ready[index % len(self._ready)]


class Big:
    """A large array, of which each sample is a row."""

    def __init__(self, nbytes: int = 1_000_000_000, row: int = 1000) -> None:
        self._rows = np.ones((nbytes // (4 * row), row), np.float32)
        self.nbytes = self._rows.nbytes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._rows[index]
