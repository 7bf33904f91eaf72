"""Loaders for Accelerate and for the Trainer of transformers, which build their own loaders from those they get."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import accelerate.data_loader
import torch.utils.data
from accelerate.utils import find_batch_size, recursively_apply

from antifreeze.core import ConfigError
from antifreeze.loaders import StreamingDataLoader
from antifreeze.loaders.dataloader import DataLoader

__all__ = ["antifreeze_loaders", "prepare"]

_TORCH_TAKES = inspect.signature(torch.utils.data.DataLoader).parameters
_ONLY_OURS = [name for name in inspect.signature(DataLoader).parameters if name not in _TORCH_TAKES]


@contextmanager
def antifreeze_loaders(**options: Any) -> Iterator[None]:
    """Make every loader that Accelerate builds inside the ``with`` block an ``antifreeze.DataLoader``.

    Accelerate never iterates over the loader that it is given: it builds one of torch's from its attributes, and again
    when batches are skipped after a resume. ``transformers.Trainer`` leaves its loaders to Accelerate.

    Args:
        **options: Arguments of ``antifreeze.DataLoader`` that torch's does not have, for all of these loaders.

    Raises:
        ConfigError: If an option is not such an argument.
    """
    unknown = sorted(set(options) - set(_ONLY_OURS))
    if unknown:
        raise ConfigError(
            f"antifreeze_loaders() does not take {', '.join(unknown)}",
            hint=f"it takes {', '.join(_ONLY_OURS)}; all else belongs to the loader, or to TrainingArguments",
            argument=unknown[0],
        )
    # Accelerate itself sees to it that all ranks have the same number of batches.
    ours = partial(DataLoader, **{"uneven_ranks": "ignore", **options})
    before, accelerate.data_loader.DataLoader = accelerate.data_loader.DataLoader, ours
    try:
        yield
    finally:
        accelerate.data_loader.DataLoader = before


def prepare(accelerator: Any, loader: DataLoader[Any] | StreamingDataLoader) -> Any:
    """Return what ``accelerator.prepare(loader)`` should: batches on the device, this rank's part, and our workers.

    ``accelerator.save_state`` and ``load_state`` then keep the position within the epoch.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        loader: An ``antifreeze.DataLoader`` or an ``antifreeze.StreamingDataLoader``.

    Returns:
        The prepared loader.

    Raises:
        ConfigError: If the accelerator uses torchdata's ``StatefulDataLoader``.
    """
    if accelerator.use_stateful_dataloader:
        raise ConfigError(
            "use_stateful_dataloader=True makes Accelerate read with torchdata's loader instead of antifreeze's",
            hint="leave it out of DataLoaderConfiguration: antifreeze's loaders have their own state",
            argument="use_stateful_dataloader",
        )
    if isinstance(loader, DataLoader):
        options = {name: getattr(loader, name) for name in _ONLY_OURS if name != "uneven_ranks"}
        with antifreeze_loaders(**options):
            prepared = accelerator.prepare_data_loader(loader)
    else:
        prepared = accelerator.prepare_data_loader(_Streaming(loader, accelerator))
    prepared.use_stateful_dataloader = True  # save_state asks for this
    prepared._is_accelerate_prepared = True
    return prepared


class _Streaming(accelerate.data_loader.DataLoaderShard):  # type: ignore[misc]
    """A ``StreamingDataLoader`` where Accelerate expects a loader that it has built.

    The loader knows its rank's part itself.
    """

    _is_accelerate_prepared = True

    def __init__(self, loader: StreamingDataLoader, accelerator: Any) -> None:
        device = accelerator.device if accelerator.device_placement else None
        super().__init__([], device=device, iteration=loader.epoch, _non_blocking=accelerator.non_blocking)
        self.base_dataloader = loader
        self.dl_state_dict = loader.state_dict()
        world_size = accelerator.num_processes
        rest = 0 if loader.drop_last else len(loader.dataset) % (loader.batch_size * world_size)
        self._longest = -(-rest // world_size) if accelerator.even_batches else 0
        """The rows of the longest last batch, if it is not full."""
        self._added = max(0, self._longest * world_size - rest)
        self._rest = rest

    def begin(self) -> None:
        super().begin()
        # What gather_for_metrics keeps of the last batches, rank after rank. It can cut off one added row, not several.
        self.remainder = self._rest if self._added <= 1 else -1

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            is_short = self.end_of_dataloader and find_batch_size(batch) == self._longest - 1
            yield recursively_apply(_with_first_again, batch) if is_short else batch

    def set_epoch(self, epoch: int) -> None:
        self.iteration = epoch
        self.base_dataloader.set_epoch(epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base_dataloader.load_state_dict(state_dict)
        self.iteration = self.base_dataloader.epoch


def _with_first_again(rows: torch.Tensor) -> torch.Tensor:
    """Make a last batch as long as those of other ranks: ``gather`` needs them alike."""
    return torch.cat([rows, rows[:1]])
