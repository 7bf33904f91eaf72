"""What the tests of ``DataLoader`` do once for all of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from beside_torch import Items, ours


@pytest.fixture(scope="module")
def the_nursery_stays() -> Iterator[None]:
    """Keep one worker all the time: the process that workers are born from has then imported torch but once."""
    loader = ours(Items([torch.zeros(1)] * 4), num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    yield
    del batches, loader
