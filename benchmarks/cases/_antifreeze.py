"""antifreeze as its documentation shows it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# By name: these imports happen here, before the clock starts, as those of the other loaders do.
from antifreeze import StreamingDataLoader, StreamingDataset
from cases._decode import Batch


def make(data_dir: Path, batch_size: int, shuffle: bool, memory_limit: str | None = None) -> Iterable[Batch]:
    dataset = StreamingDataset(str(data_dir), shuffle=shuffle)
    more = {} if memory_limit is None else {"memory_limit": memory_limit}
    return StreamingDataLoader(dataset, batch_size=batch_size, num_workers=2, **more)
