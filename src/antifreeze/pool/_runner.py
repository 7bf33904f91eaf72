"""Worker processes as a runner: starts a pool at the first batch, ends it with the last, or when it is dropped."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.core import AntifreezeError, ConfigError
from antifreeze.distributed import Location, RankStatus, Watched, watch_ranks
from antifreeze.pool._failures import Decide, no_descriptors
from antifreeze.pool._history import History
from antifreeze.pool._pool import Pool
from antifreeze.pool._pool_epoch import END, Batch, PoolEpoch
from antifreeze.pool._prefetch import PrefetchTuner
from antifreeze.pool._supervisor import the_supervisor
from antifreeze.pool._task_sources import TaskSource
from antifreeze.pool._task_table import TaskTable
from antifreeze.pool._template import Templates


class PoolCache:
    """Where pools come from and go to: a loader's workers live for one epoch, or stay for the next one."""

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._kept: Pool | None = None
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
        the_supervisor().start(template)
        del before  # Order: the modules it was forked from stay imported as long as somebody needs them

    def take(self, make: Callable[[], Pool]) -> Pool:
        """Return a pool that nobody uses, one that stayed or a new one."""
        pool = self._kept
        if pool is not None and pool.dispatcher is None and pool.is_usable:
            return pool
        try:
            pool = make()
            pool.start(self._templates)
        except OSError as error:
            raise no_descriptors(error) from error
        if self._persistent and (self._kept is None or not self._kept.is_usable):
            if self._finalizer is not None:
                self._finalizer()
            self._kept = pool
            self._finalizer = weakref.finalize(self, pool.end)
            self._finalizer.atexit = False
        return pool

    def keeps(self, pool: Pool) -> bool:
        """Tell whether a pool stays when its epoch is over."""
        return pool is self._kept and pool.is_usable


class PoolRunner:
    """Yields the batches that the workers of a pool make of a source's tasks, in order.

    No process is started before the first batch is asked for. After an error it can be asked for the next batch.
    """

    def __init__(
        self,
        pool_cache: PoolCache,
        make_pool: Callable[[], Pool],
        source: TaskSource,
        tuner: PrefetchTuner,
        history: History,
        *,
        number: int,
        num_workers: int,
        in_order: bool,
        timeout_s: float,
        decide: Decide,
        upstream: Callable[[], Location] | None = None,
        epoch: int | None = None,
    ) -> None:
        self._pool_cache, self._make_pool, self._source = pool_cache, make_pool, source
        self._tuner, self._history, self._decide = tuner, history, decide
        self._task_table = TaskTable(num_workers, in_order=in_order)
        self._number, self._timeout_s = number, timeout_s
        self._epoch: PoolEpoch | None = None
        self._release: Any = None
        self._done = False
        self._pid = os.getpid()
        self._upstream = upstream
        """Returns the location of what the tasks come from, if they can be late."""
        self._shown_epoch = number if epoch is None else epoch
        """What messages call the epoch."""
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
        self._task_table.delivered()
        self._history.asked()
        try:
            epoch = self._epoch or self._begin()
            batch = epoch.next(self._timeout_s)
            self._history.answered()
        except BaseException as error:
            # An error that the user keeps, as notebooks do, holds this frame; it must not hold workers. Who asks on
            # after an error gets the next batch, from a new pool.
            is_ours = isinstance(error, AntifreezeError)
            if is_ours:
                self._task_table.delivered()  # or it would hold the error, and this frame with it
            else:  # out of a signal's handler, say: maybe in the middle of a message, or with a batch in hand
                self._task_table.take_back()
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
        return self._task_table.count_next(
            lambda outcome: isinstance(outcome, Batch) and outcome.result.packed is not None
        )

    def _begin(self) -> PoolEpoch:
        pool = self._pool_cache.take(self._make_pool)
        with pool.lock:
            ends, pool.shard_ends = pool.shard_ends, {}
        self._source.begun_again(ends)
        epoch = PoolEpoch(
            pool, self._source, self._task_table, self._tuner, self._history, number=self._number, decide=self._decide
        )
        with pool.lock:
            pool.dispatcher = epoch
        self._release = weakref.finalize(
            self, _release, pool, self._task_table, epoch.run, self._pool_cache.keeps(pool)
        )
        self._release.atexit = False
        self._epoch = epoch
        self._watched = watch_ranks(self, PoolRunner._standing)
        return epoch

    def _standing(self) -> RankStatus:
        """Return where this epoch stands, for other ranks. Called by another thread, and only looks."""
        epoch = self._epoch
        if epoch is None:
            return self._history.status(self._shown_epoch, self._first, Location())
        place, trouble = epoch.where()
        if not place.worker and self._upstream is not None:
            place = self._upstream()
        return self._history.status(self._shown_epoch, self._first, place, trouble, epoch.stall_limit_s)

    def end_workers(self) -> None:
        """End all workers, also those that would stay for the next epoch. Asking for another batch starts new ones."""
        self.close(for_good=True)

    def close(self, *, for_good: bool = False) -> None:
        """Let the workers go, if ``for_good`` also those that would stay for the next epoch.

        May be called twice; asking for another batch starts new ones.
        """
        if self._watched is not None:
            self._watched.close()
        if self._release is not None and (parts := self._release.detach()) is not None:
            pool, _, run, keep = parts[2]
            with pool.lock:
                # Order: before the task table is used again. What becomes of these workers is not its affair.
                pool.dispatcher = None
                pool.exits.clear()
            _let_go(pool, run, keep and not for_good)
        self._release = self._epoch = None
        self._task_table.reclaim()


def _release(pool: Pool, task_table: TaskTable, run: int, keep: bool) -> None:
    """Let the workers go, and give back what nobody will take."""
    _let_go(pool, run, keep)
    for outcome in task_table.outcomes():
        if isinstance(outcome, Batch) and outcome.result.packed is not None:
            outcome.inbox.release(outcome.result.packed.pieces)


def _let_go(pool: Pool, run: int, keep: bool) -> None:
    if keep and pool.is_usable:
        pool.cancelled.append(run)
        pool.dispatcher = None
    else:
        pool.end()
