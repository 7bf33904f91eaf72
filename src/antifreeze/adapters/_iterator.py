"""The iterator over one epoch that a ``DataLoader`` gives."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed

from antifreeze.adapters._copied import CopiedIterator
from antifreeze.adapters._epochs import Course, Epoch, Epochs
from antifreeze.adapters._even_ranks import EvenRanks, take_part
from antifreeze.adapters._state import SharePlace
from antifreeze.adapters.torch import pin
from antifreeze.crew import Batches

_END = object()


class EpochIterator:
    """An epoch as torch's loader gives it: it can be asked for its length, too.

    Nothing is started or drawn before the first batch is asked for.
    """

    def __init__(self, loader: Any, epochs: Epochs) -> None:
        self._loader, self._epochs = loader, epochs
        self._epoch: Epoch | None = None
        self._course: Course | None = None
        self._batches: Iterator[Any] = iter(())
        self._goes_on = False
        """Whether the epoch is one that was loaded, and nothing of it was delivered here."""
        self._in_hand: Any = _END
        """A batch that has come and was not returned: an interrupt was faster."""
        # As in torch: what len(loader) has found before the epoch began, for iterable datasets only.
        self._length: int | None = loader._IterableDataset_len_called
        # Several threads may take batches, each another one. Reentrant: a signal's handler may ask, too.
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __reduce__(self) -> tuple[Any, ...]:
        return CopiedIterator, ()

    def __next__(self) -> Any:
        with self._lock:
            batch = self._next()
        if self._length is not None and (excess := self._excess()):
            warnings.warn(excess, stacklevel=2)
        return batch

    def _excess(self) -> str:
        """Return a warning if more batches were delivered than the dataset has samples, by its ``__len__``."""
        place = self._epoch.place if self._epoch is not None else None
        # A rank that repeats its batches because others have more knows that it does.
        if not isinstance(place, SharePlace) or place.own is not None or place.batches <= (self._length or 0):
            return ""
        text = (
            f"Length of IterableDataset {self._loader.dataset} was reported to be {self._length} (when accessing "
            f"len(dataloader)), but {place.batches} samples have been fetched. "
        )
        if not self._loader.num_workers:
            return text
        return text + (
            "For multiprocessing data-loading, this happens if every worker yields the whole dataset: let __iter__ "
            "yield the shard of its worker only, see torch.utils.data.get_worker_info()."
        )

    def _next(self) -> Any:
        epoch = self._epoch or self._begin()
        batch = self._in_hand = next(self._batches, _END) if self._in_hand is _END else self._in_hand
        if batch is _END and self._goes_on:
            # Nothing was left of the epoch that was loaded: its end is the beginning of the next one.
            epoch = self._begin()
            batch = self._in_hand = next(self._batches, _END)
        if batch is _END:
            epoch.is_done = True
            raise StopIteration
        self._goes_on = False
        if self._loader.pin_memory:
            batch = pin(batch)
        self._note(epoch)
        self._in_hand = _END
        return batch

    def _begin(self) -> Epoch:
        epoch, course, goes_on = self._epochs.begin(self._loader)
        batches = self._loader._batches(course)
        if self._loader._uneven and take_part(torch.distributed):
            place: Any = epoch.place
            batches = EvenRanks(
                batches,
                lambda: self._repeated(epoch),
                f"antifreeze/{self._loader._number}/{self._epochs.key(epoch)}",
                torch.distributed,
                count=place.batches,
                own=place.own,
            )
        self._epoch, self._course, self._batches, self._goes_on = epoch, course, batches, goes_on
        return epoch

    def _repeated(self, epoch: Epoch) -> Iterator[Any]:
        """Begin the epoch once more, on a rank whose data has ended before that of others."""
        self._course = self._epochs.again(self._loader, epoch)
        batches: Iterator[Any] = self._loader._batches(self._course)
        return batches

    def _note(self, epoch: Epoch) -> None:
        assert self._course is not None  # noqa: S101  it was begun
        if not isinstance(self._batches, EvenRanks):
            epoch.delivered(self._course, None, None)
            return
        count, own = self._batches.count, self._batches.own
        epoch.delivered(self._course, count, own if own is not None and count > own else None)

    def _shutdown_workers(self) -> None:
        """End the workers now. Scripts ask torch's iterator for this by its private name, to restart workers."""
        batches = self._batches._batches if isinstance(self._batches, EvenRanks) else self._batches
        if isinstance(batches, Batches):
            batches.close(for_good=True)
