"""antifreeze as its documentation shows it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import antifreeze as af
from cases._decode import Batch


def make(data_dir: Path, batch_size: int, shuffle: bool, memory_limit: str | None = None) -> Iterable[Batch]:
    dataset = af.StreamingDataset(str(data_dir), shuffle=shuffle)
    more = {} if memory_limit is None else {"memory_limit": memory_limit}
    return af.StreamingDataLoader(dataset, batch_size=batch_size, num_workers=2, **more)
