"""One epoch of a ``DataLoader``: begins as torch's does, and moves the loader's position with every batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed

from antifreeze.core import AntifreezeError, one_line
from antifreeze.datasets.tensors import pin
from antifreeze.loaders._epoch_run import After
from antifreeze.loaders._epochs import Epochs, EpochStart, LoaderEpoch
from antifreeze.loaders._pad_ranks import PaddedRanks, take_part
from antifreeze.loaders._saved_state import ShardPosition
from antifreeze.loaders._torch_settings import TorchLoader

MakeRunner = Callable[[LoaderEpoch], Iterator[Any]]


class TorchEpoch:
    """What torch's loader draws when an iterator is made is drawn when this is made. Nothing else happens then."""

    def __init__(
        self,
        loader: TorchLoader,
        epochs: Epochs,
        make_runner: MakeRunner,
        *,
        padding_key: str | None,
        known_length: int | None,
    ) -> None:
        self._loader, self._epochs, self._make_runner = loader, epochs, make_runner
        self._padding_key = padding_key
        """What ranks know this loader by, if those whose data ends first repeat it; None if they do not."""
        self._padded: PaddedRanks | None = None
        # As in torch: what len(loader) has found before the epoch began, for iterable datasets only.
        self._length = known_length
        self._begin()

    def __len__(self) -> int:
        return len(self._loader)

    def _begin(self) -> None:
        self._loads = self._epochs.loads
        self._epoch, self._indices = self._epochs.begin(self._loader)

    def start(self) -> Iterator[Any]:
        """Start the sampler if that was not done, and return who makes the batches."""
        if self._loads != self._epochs.loads:
            self._begin()  # frameworks make an iterator, and then load a state
        epoch = self._epoch
        if epoch.loaded is not None:
            self._loads = -1  # a state that is refused now must not be taken for good the next time
        self._tasks = self._epochs.start(self._loader, epoch, self._indices)
        self._loads = self._epochs.loads
        runner = self._make_runner(self._tasks)
        self._padded = None
        if self._padding_key is None or not take_part(torch.distributed):
            return runner
        place: Any = epoch.place
        self._padded = PaddedRanks(
            runner,
            lambda: self._repeated(epoch),
            f"{self._padding_key}/{self._epochs.key(epoch)}",
            torch.distributed,
            count=place.batches,
            own=place.own,
        )
        return self._padded

    def _repeated(self, epoch: EpochStart) -> Iterator[Any]:
        """Begin the epoch once more, on a rank whose data has ended before that of others."""
        self._tasks = self._epochs.again(self._loader, epoch)
        return self._make_runner(self._tasks)

    def on_arrival(self) -> None:
        """Ask the sampler when torch's loader would."""
        if self._indices is not None:
            self._indices.more()

    def hand_over(self, arrived: Any) -> Any:
        """Pin a batch and note that it is delivered."""
        batch = pin(arrived) if self._loader.pin_memory else arrived
        epoch, source = self._epoch, self._tasks.source
        if epoch.loaded is not None:
            self._epochs.resumed(epoch)
        if self._indices is not None:
            epoch.stepped(source, self._indices)
        elif self._padded is not None:
            count, own = self._padded.count, self._padded.own
            epoch.delivered(source, count, own if own is not None and count > own else None)
        else:
            epoch.delivered(source, None, None)
        return batch

    def on_delivery(self) -> None:
        """Warn if there are more batches than the dataset has said, as torch does."""
        if self._length is not None and (excess := self._excess()):
            warnings.warn(excess, stacklevel=3)

    def on_error(self, error: BaseException, *, is_started: bool) -> After:
        """After an error of ours, a batch is missing, and the next call returns the one after it."""
        if is_started and isinstance(error, AntifreezeError) and self._indices is not None:
            self._indices.more()
            self._epoch.stepped(self._tasks.source, self._indices)
        return After.CONTINUE

    def on_end(self) -> bool:
        """True if nothing was left of an epoch that was loaded: then the next one begins."""
        if self._epoch.loaded is not None:
            self._epochs.resumed(self._epoch)
            self._begin()
            return True
        if self._indices is not None:
            self._epoch.stepped(self._tasks.source, self._indices)
        self._epoch.is_done = True
        return False

    def _excess(self) -> str:
        """Return a warning if more batches were delivered than the dataset has samples, by its ``__len__``."""
        place = self._epoch.place
        # A rank that repeats its batches because others have more knows that it does.
        if not isinstance(place, ShardPosition) or place.own is not None or place.batches <= (self._length or 0):
            return ""
        dataset = one_line(self._loader.dataset)
        text = (
            f"Length of IterableDataset {dataset} was reported to be {self._length} (when accessing "
            f"len(dataloader)), but {place.batches} samples have been fetched. "
        )
        if not self._loader.num_workers:
            return text
        return text + (
            "For multiprocessing data-loading, this happens if every worker yields the whole dataset: let __iter__ "
            "yield the shard of its worker only, see torch.utils.data.get_worker_info()."
        )
