"""The iterator over one epoch: starts its crew at the first batch, ends it with the last, or when it is dropped."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.core import AntifreezeError, ConfigError
from antifreeze.crew._crew import Crew
from antifreeze.crew._epoch import END, Batch, Epoch
from antifreeze.crew._failures import Decide, no_descriptors
from antifreeze.crew._history import History
from antifreeze.crew._keeper import the_keeper
from antifreeze.crew._ledger import Ledger
from antifreeze.crew._pace import Pace
from antifreeze.crew._sources import Source
from antifreeze.crew._template import Templates
from antifreeze.ranks import Place, Standing, Watched, watch_ranks


class Quarters:
    """Where crews come from and go to: a loader's workers live for one epoch, or stay for the next one."""

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._kept: Crew | None = None
        self._finalizer: Any = None
        self._templates = Templates()

    def __getstate__(self) -> dict[str, Any]:
        return {"_persistent": self._persistent, "_kept": None, "_finalizer": None, "_templates": Templates()}

    def facts(self) -> dict[str, Any]:
        """Return what a report says of how workers start."""
        return {"per_worker_load": self._templates.reason, "persistent_workers": self._persistent}

    def prestart(self, program: Any) -> None:
        """Start the processes that workers are forked from, in the background."""
        try:
            before = self._templates.current
            template, _ = self._templates.of(program)
        except OSError as error:
            raise no_descriptors(error) from error
        the_keeper().start(template)
        del before  # Order: the modules it was forked from stay imported as long as somebody needs them

    def take(self, make: Callable[[], Crew]) -> Crew:
        """Return a crew that nobody uses, one that stayed or a new one."""
        crew = self._kept
        if crew is not None and crew.flow is None and crew.is_usable:
            return crew
        try:
            crew = make()
            crew.start(self._templates)
        except OSError as error:
            raise no_descriptors(error) from error
        if self._persistent and (self._kept is None or not self._kept.is_usable):
            if self._finalizer is not None:
                self._finalizer()
            self._kept = crew
            self._finalizer = weakref.finalize(self, crew.end)
            self._finalizer.atexit = False
        return crew

    def keeps(self, crew: Crew) -> bool:
        """Tell whether a crew stays when its epoch is over."""
        return crew is self._kept and crew.is_usable


class Batches:
    """Yields the batches of an epoch in order. Nothing is started or consumed before the first is asked for."""

    def __init__(
        self,
        quarters: Quarters,
        make_crew: Callable[[], Crew],
        make_source: Callable[[int], Source],
        pace: Pace,
        history: History,
        *,
        number: Callable[[], int],
        num_workers: int,
        in_order: bool,
        timeout_s: float,
        decide: Decide,
        upstream: Callable[[], Place] | None = None,
        epoch: int | None = None,
    ) -> None:
        self._quarters, self._make_crew, self._make_source = quarters, make_crew, make_source
        self._pace, self._history, self._decide = pace, history, decide
        self._ledger = Ledger(num_workers, in_order=in_order)
        self._next_number, self._number, self._timeout_s = number, -1, timeout_s
        self._source: Source | None = None
        self._epoch: Epoch | None = None
        self._release: Any = None
        self._done = False
        self._pid = os.getpid()
        self._upstream = upstream
        """Says where that stands from which the tasks come, if they can be late."""
        self._shown_epoch = epoch
        """What messages call the epoch, if not by its number."""
        self._watched: Watched | None = None
        self._first = history.batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise ConfigError(
                "this iterator was made before the process was forked, and its workers belong to the parent",
                hint="call iter(loader) in the process that reads from it",
                argument="loader",
            )
        if self._done:
            raise StopIteration
        self._ledger.delivered()
        self._history.asked()
        try:
            epoch = self._epoch or self._begin()
            batch = epoch.next(self._timeout_s)
            self._history.answered()
        except BaseException as error:
            # An error that the user keeps, as notebooks do, holds this frame; it must not hold workers. Who asks on
            # after an error gets the next batch, from a new crew.
            is_ours = isinstance(error, AntifreezeError)
            if is_ours:
                self._ledger.delivered()  # or it would hold the error, and this frame with it
            else:  # out of a signal's handler, say: maybe in the middle of a message, or with a batch in hand
                self._ledger.take_back()
            self.close(for_good=not is_ours)
            raise
        if batch is END:
            self._done = True
            self.close()
            self._history.epochs += 1
            self._history.ended()
            raise StopIteration
        return batch

    @property
    def num_ready(self) -> int:
        """How many batches have come back and are the next to be taken."""
        return self._ledger.count_next(lambda outcome: isinstance(outcome, Batch) and outcome.result.packed is not None)

    def _begin(self) -> Epoch:
        if self._source is None:
            self._number, self._first = self._next_number(), self._history.batches
            self._source = self._make_source(self._number)
        crew = self._quarters.take(self._make_crew)
        with crew.lock:
            ends, crew.shard_ends = crew.shard_ends, {}
        self._source.begun_again(ends)
        epoch = Epoch(
            crew, self._source, self._ledger, self._pace, self._history, number=self._number, decide=self._decide
        )
        with crew.lock:
            crew.flow = epoch
        self._release = weakref.finalize(self, _release, crew, self._ledger, epoch.run, self._quarters.keeps(crew))
        self._release.atexit = False
        self._epoch = epoch
        self._watched = watch_ranks(self, Batches._standing)
        return epoch

    def _standing(self) -> Standing:
        """Return where this epoch stands, for other ranks. Called by another thread, and only looks."""
        epoch = self._epoch
        if epoch is None:
            return self._history.standing(self._shown, self._first, Place())
        place, trouble = epoch.where()
        if not place.worker and self._upstream is not None:
            place = self._upstream()
        return self._history.standing(self._shown, self._first, place, trouble, epoch.stall_limit_s)

    @property
    def _shown(self) -> int:
        return self._number if self._shown_epoch is None else self._shown_epoch

    def close(self, *, for_good: bool = False) -> None:
        """Let the workers go, if ``for_good`` also those that would stay for the next epoch.

        May be called twice; asking for another batch starts new ones.
        """
        if self._watched is not None:
            self._watched.close()
        if self._release is not None and (parts := self._release.detach()) is not None:
            crew, _, run, keep = parts[2]
            with crew.lock:
                # Order: before the ledger is used again. What becomes of these workers is not its affair.
                crew.flow = None
                crew.exits.clear()
            _let_go(crew, run, keep and not for_good)
        self._release = self._epoch = None
        self._ledger.reclaim()


def _release(crew: Crew, ledger: Ledger, run: int, keep: bool) -> None:
    """Let the workers go, and give back what nobody will take."""
    _let_go(crew, run, keep)
    for outcome in ledger.outcomes():
        if isinstance(outcome, Batch) and outcome.result.packed is not None:
            outcome.inbox.release(outcome.result.packed.pieces)


def _let_go(crew: Crew, run: int, keep: bool) -> None:
    if keep and crew.is_usable:
        crew.cancelled.append(run)
        crew.flow = None
    else:
        crew.end()
