"""One epoch as an iterator: the one that both loaders give.

The problem. An iterator of a loader is asked from training loops, notebooks, frameworks and signal handlers. It is made
and thrown away without being asked (Lightning), asked by several threads, interrupted in the middle of a call (Ctrl-C),
and asked again after an error.

Guarantees:

- Nothing is started before the first batch is asked for.
- A batch that has arrived is never lost: it stays in hand until it is handed over, and the position of the loader moves
  at that moment and at no other. An interrupt in between costs nothing; the next call returns the batch.
- What an error does to the rest of the epoch is decided by the epoch (``After``), in one place.
- It ends once: after ``StopIteration`` it is never asked again.

Assumed: a runner can be asked again after an error unless its epoch says otherwise; ``hand_over`` may be called twice
for one batch; an epoch that is started again begins after the last batch that was handed over.

Tried: a generator. It is over after Ctrl-C, so that the next call found no more batches, and no error. Tried: taking a
batch from the runner and returning it at once. An interrupt between the two lost it. Tried: one iterator class for each
loader. Each had its own idea of a batch in hand, an interrupt and an end, and its own bugs.

Who makes the batches is not its business: an ``Epoch`` starts a runner, which is any iterator of batches. There are
four: ``PoolRunner`` (worker processes), ``InlineRunner`` (this thread), the generator of ``StreamRun`` (decoder
threads, with one of the first two behind them if there is user code), and ``PaddedRanks`` around one of them.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

from antifreeze.core import ConfigError

_NOTHING = object()


class After(enum.Enum):
    """What follows an error."""

    CONTINUE = "the same runner is asked for the next batch"
    RESTART = "the epoch is started again after the last batch that was handed over"
    END = "the epoch is over"


class Epoch(Protocol):
    """One epoch of a loader. Its methods are called by whichever thread takes batches, one at a time."""

    def start(self) -> Iterator[Any]:
        """Begin the epoch, or resume it after the last batch that was handed over, and return a runner."""
        ...

    def on_arrival(self) -> None:
        """Note that a batch has arrived. Called once for each, before it is handed over."""
        return

    def hand_over(self, arrived: Any) -> Any:
        """Move the position past a batch and return it as the user gets it. Called again if it was interrupted."""
        ...

    def on_delivery(self) -> None:
        """Warn of what was delivered, if need be. Where warnings are errors, the batch is lost, as in torch."""
        return

    def on_error(self, error: BaseException, *, is_started: bool) -> After:
        """Return what follows an error of the runner, or of ``start`` if that has not returned."""
        ...

    def on_end(self) -> bool:
        """Note that the runner has no more batches. True if it had none at all and another epoch follows instead."""
        return False

    def __len__(self) -> int: ...


class EpochRun:
    """Yields the batches of one epoch."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._runner: Any = None
        self._in_hand: Any = _NOTHING
        self._is_over = False
        # Several threads may take batches, each another one.
        # Signal-safe: reentrant, because the handler of a signal may ask while this thread holds it.
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._epoch)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not an error here: frameworks copy what holds an iterator, and never use that of the copy.
        return CopiedIterator, ()

    def __next__(self) -> Any:
        with self._lock:
            while self._in_hand is _NOTHING:
                if self._is_over:
                    raise StopIteration
                self._fetch()
            # Order: the position moves before the batch leaves the hand. An interrupt between the two lines returns the
            # batch again, at a position that has moved already; the other way round, it would be lost.
            batch = self._epoch.hand_over(self._in_hand)
            self._in_hand = _NOTHING
        # Outside of the lock: a warning runs code of the user's, which may ask for a batch in another thread.
        self._epoch.on_delivery()
        return batch

    def _fetch(self) -> None:
        try:
            if self._runner is None:
                self._runner = self._epoch.start()
            # Signal-safe: the batch is in hand as soon as it has arrived.
            self._in_hand = next(self._runner, _NOTHING)
        # Invariant: a batch that has arrived is in hand. Whatever is raised here, Ctrl-C among it, costs none.
        except BaseException as error:
            after = self._epoch.on_error(error, is_started=self._runner is not None)
            self._is_over = after is After.END
            # A runner that is not asked again must not be kept: it holds threads and workers.
            if after is not After.CONTINUE:
                self._runner = None
            raise
        if self._in_hand is not _NOTHING:
            self._epoch.on_arrival()
        elif self._epoch.on_end():
            self._runner = None  # not the end: a state was loaded that nothing was left of, and the next epoch follows
        else:
            self._is_over = True

    def close(self) -> None:
        """End the epoch here."""
        self._is_over, self._in_hand = True, _NOTHING
        # There may be no runner yet, or an empty iterator where nothing was left.
        if hasattr(self._runner, "close"):
            self._runner.close()

    def _shutdown_workers(self) -> None:
        """End the workers now. Scripts ask torch's iterator for this by its private name, to restart workers."""
        if hasattr(self._runner, "end_workers"):
            self._runner.end_workers()


class CopiedIterator:
    """What is left of an epoch's iterator when it is copied or pickled: an error that says so.

    Workers, threads and the position belong to the iterator that was copied. Torch refuses to copy its own; frameworks
    know those by their class, and leave them out when they pickle what holds them.
    """

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> NoReturn:
        raise ConfigError(
            "an iterator over a loader cannot be copied or pickled, and this is what is left of one",
            hint="call iter(loader) on the copy; state_dict() of the loader says where the original is",
            argument="loader",
        )
