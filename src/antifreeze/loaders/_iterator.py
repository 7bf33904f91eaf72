"""The iterator over one epoch that a ``DataLoader`` gives."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed

from antifreeze.core import AntifreezeError, one_line
from antifreeze.datasets.tensors import pin
from antifreeze.loaders._copied_iterator import CopiedIterator
from antifreeze.loaders._epochs import Epochs, EpochStart
from antifreeze.loaders._pad_ranks import PaddedRanks, take_part
from antifreeze.loaders._saved_state import ShardPosition
from antifreeze.pool import Batches

_END = object()


class EpochIterator:
    """An epoch as torch's loader gives it: it can be asked for its length, too.

    What torch's loader draws when an iterator is made is drawn then. Nothing is started before the first batch is asked
    for.
    """

    def __init__(self, loader: Any, epochs: Epochs) -> None:
        self._loader, self._epochs = loader, epochs
        self._batches: Iterator[Any] | None = None
        self._in_hand: Any = _END
        """A batch that has come and was not returned: an interrupt was faster."""
        # As in torch: what len(loader) has found before the epoch began, for iterable datasets only.
        self._length: int | None = loader._IterableDataset_len_called
        # Several threads may take batches, each another one. Reentrant: a signal's handler may ask, too.
        self._lock = threading.RLock()
        self._begin()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedIterator, ()

    def __next__(self) -> Any:
        with self._lock:
            batch = self._in_hand
            if batch is _END:
                batch = self._take(self._batches or self._start())
                if batch is _END:
                    batch = self._take_of_next()
            if self._loader.pin_memory:
                batch = pin(batch)
            self._note()
            self._in_hand = _END
        if self._length is not None and (excess := self._excess()):
            warnings.warn(excess, stacklevel=2)
        return batch

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

    def _take(self, batches: Iterator[Any]) -> Any:
        """Return the next batch, and ask the sampler when torch's loader would."""
        try:
            batch = self._in_hand = next(batches, _END)
        except AntifreezeError:
            if self._indices is not None:
                self._indices.more()
                self._epoch.stepped(self._course.source, self._indices)
            raise
        if self._indices is not None and batch is not _END:
            self._indices.more()
        return batch

    def _take_of_next(self) -> Any:
        """Return the first batch of the next epoch, if nothing was left of one that was loaded; else end."""
        if self._epoch.loaded is not None:
            self._epochs.resumed(self._epoch)
            self._begin()
            batch = self._take(self._start())
            if batch is not _END:
                return batch
        if self._indices is not None:
            self._epoch.stepped(self._course.source, self._indices)
        self._epoch.is_done = True
        raise StopIteration

    def _begin(self) -> None:
        self._loads = self._epochs.loads
        self._epoch, self._indices = self._epochs.begin(self._loader)
        self._batches = None

    def _start(self) -> Iterator[Any]:
        if self._loads != self._epochs.loads:
            self._begin()  # frameworks make an iterator, and then load a state
        epoch = self._epoch
        if epoch.loaded is not None:
            self._loads = -1  # a state that is refused now must not be taken for good the next time
        self._course = self._epochs.start(self._loader, epoch, self._indices)
        self._loads = self._epochs.loads
        batches: Iterator[Any] = self._loader._batches(self._course)
        if self._loader._uneven and take_part(torch.distributed):
            place: Any = epoch.place
            batches = PaddedRanks(
                batches,
                lambda: self._repeated(epoch),
                f"antifreeze/{self._loader._number}/{self._epochs.key(epoch)}",
                torch.distributed,
                count=place.batches,
                own=place.own,
            )
        self._batches = batches
        return batches

    def _repeated(self, epoch: EpochStart) -> Iterator[Any]:
        """Begin the epoch once more, on a rank whose data has ended before that of others."""
        self._course = self._epochs.again(self._loader, epoch)
        batches: Iterator[Any] = self._loader._batches(self._course)
        return batches

    def _note(self) -> None:
        """Note that a batch is handed over."""
        epoch, batches, source = self._epoch, self._batches, self._course.source
        if epoch.loaded is not None:
            self._epochs.resumed(epoch)
        if self._indices is not None:
            epoch.stepped(source, self._indices)
        elif isinstance(batches, PaddedRanks):
            count, own = batches.count, batches.own
            epoch.delivered(source, count, own if own is not None and count > own else None)
        else:
            epoch.delivered(source, None, None)

    def _shutdown_workers(self) -> None:
        """End the workers now. Scripts ask torch's iterator for this by its private name, to restart workers."""
        batches = self._batches._batches if isinstance(self._batches, PaddedRanks) else self._batches
        if isinstance(batches, Batches):
            batches.close(for_good=True)
