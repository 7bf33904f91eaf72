"""Runs an epoch on worker processes: starts a pool at the first batch, and releases it after the last."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from antifreeze.core import AntifreezeError, ConfigError, Location
from antifreeze.diagnosis import History
from antifreeze.distributed import RankStatus, Watched, watch_ranks
from antifreeze.pool._failures import Decide, no_descriptors
from antifreeze.pool._pool import Pool
from antifreeze.pool._pool_epoch import END, Batch, PoolEpoch
from antifreeze.pool._prefetch import PrefetchTuner
from antifreeze.pool._supervisor import the_supervisor
from antifreeze.pool._task_sources import TaskSource
from antifreeze.pool._task_table import TaskTable
from antifreeze.pool._template import Templates


class PoolCache:
    """Creates and keeps the pools of a loader: its workers run for one epoch, or persist for the next."""

    def __init__(self, *, persistent: bool) -> None:
        self._persistent = persistent
        self._kept: Pool | None = None
        self._finalizer: Any = None
        self._templates = Templates()

    def __getstate__(self) -> dict[str, Any]:
        return {"_persistent": self._persistent, "_kept": None, "_finalizer": None, "_templates": Templates()}

    def facts(self) -> dict[str, Any]:
        """Return the facts about worker startup for the report."""
        template = self._templates.current
        return {
            "per_worker_load": "" if template is None else template.reason,
            "carried": self._templates.carried,
            "persistent_workers": self._persistent,
        }

    def prestart(self, program: Any) -> None:
        """Start the fork server and the template process in the background."""
        try:
            before = self._templates.current
            template, _ = self._templates.of(program)
        except OSError as error:
            raise no_descriptors(error) from error
        the_supervisor().start(template)
        del before  # Order: last, so that modules imported for the previous template stay imported for the new one

    def take(self, make: Callable[[], Pool]) -> Pool:
        """Return an unused pool: the persistent one, or a new one."""
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

    def is_kept(self, pool: Pool) -> bool:
        """Return True if a pool persists after its epoch."""
        return pool is self._kept and pool.is_usable


class PoolRunner:
    """Yields the batches that the workers of a pool make from the tasks of a source, in order.

    No process is started before the first batch is requested. Iteration may continue after an error.
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
        """Returns the location of the decoder that produces the tasks, if there is one."""
        self._shown_epoch = number if epoch is None else epoch
        """Epoch number in messages."""
        self._watched: Watched | None = None
        self._first = history.batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._pid:
            raise ConfigError(
                "cannot use this iterator after a fork: its workers belong to the parent process",
                hint="call iter(loader) in the process that iterates over it",
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
            # An error that the user keeps, as notebooks do, references this frame; it must not keep workers alive. If
            # iteration continues after an error, the next call returns the following batch, from a new pool.
            is_ours = isinstance(error, AntifreezeError)
            if is_ours:
                self._task_table.delivered()  # or it would reference the error, and with it this frame
            else:  # raised by a signal handler, for example: maybe mid-message, or with a batch already taken
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
        """Number of batches that can be delivered without waiting."""
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
            self, _release, pool, self._task_table, epoch.run, self._pool_cache.is_kept(pool)
        )
        self._release.atexit = False
        self._epoch = epoch
        self._watched = watch_ranks(self, PoolRunner._status)
        return epoch

    def _status(self) -> RankStatus:
        """Return the status of this epoch for other ranks. Called by another thread; read-only."""
        epoch = self._epoch
        if epoch is None:
            return RankStatus(epoch=self._shown_epoch, **self._history.progress(self._first))
        location, trouble = epoch.where()
        if not location.worker and self._upstream is not None:
            location = self._upstream()
        progress = self._history.progress(self._first, epoch.stall_limit_s)
        return RankStatus(epoch=self._shown_epoch, place=location, trouble=trouble, **progress)

    def end_workers(self) -> None:
        """Shut down all workers, persistent ones included. The next batch starts new ones."""
        self.close(for_good=True)

    def close(self, *, for_good: bool = False) -> None:
        """Release the workers; with ``for_good``, shut down persistent ones as well. May be called twice."""
        if self._watched is not None:
            self._watched.close()
        if self._release is not None and (parts := self._release.detach()) is not None:
            pool, _, run, keep = parts[2]
            with pool.lock:
                # Order: before the task table is used again, which must no longer see events of these workers.
                pool.dispatcher = None
            _release_pool(pool, run, keep and not for_good)
        self._release = self._epoch = None
        self._task_table.reclaim()


def _release(pool: Pool, task_table: TaskTable, run: int, keep: bool) -> None:
    """Release the workers and the memory of batches that will not be delivered."""
    _release_pool(pool, run, keep)
    for outcome in task_table.outcomes():
        if isinstance(outcome, Batch) and outcome.result.packed is not None:
            outcome.inbox.release(outcome.result.packed.pieces)


def _release_pool(pool: Pool, run: int, keep: bool) -> None:
    if keep and pool.is_usable:
        pool.cancelled.append(run)
        pool.dispatcher = None
    else:
        pool.end()
