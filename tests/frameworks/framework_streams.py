"""An iterable dataset for the frameworks; apart from them, so that workers import torch and no framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framework_rows import sample
from torch.utils.data import IterableDataset, get_worker_info


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Gives each worker its share."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for n in range(first, self.num_rows, step):
            yield sample(n)
