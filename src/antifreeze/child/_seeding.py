"""Random numbers that belong to the step: user code sees the same ones whoever runs it, and leaves no trace."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from antifreeze.plan import step_seed


@contextmanager
def seeded(seed: int, epoch: int, step: int) -> Iterator[None]:
    """Seed ``random``, ``numpy.random`` and, if it is there, torch for one step; put back what was there before."""
    value = step_seed(seed=seed, epoch=epoch, step=step)
    torch = sys.modules.get("torch")  # never imported on the user's behalf: it takes a second and 150 MB
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state() if torch is not None else None
    random.seed(value)
    np.random.seed(value % 2**32)
    if torch is not None:
        torch.default_generator.manual_seed(value)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)
