"""What an epoch needs of a ``DataLoader``. Frameworks set attributes at any time, so it is read when it is needed."""

from __future__ import annotations

from typing import Any, Protocol

from torch.utils.data import IterableDataset


class TorchLoader(Protocol):
    """A loader with the arguments of torch's, each as the attribute of its name."""

    dataset: Any
    batch_size: int | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    sampler: Any
    batch_sampler: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool

    def renew_workers(self) -> None:
        """Let workers go that stay from epoch to epoch: the dataset is another one than they know."""
        ...

    def __len__(self) -> int: ...


def is_iterable(loader: TorchLoader) -> bool:
    """True if the dataset is iterable, not map-style."""
    return isinstance(loader.dataset, IterableDataset)
