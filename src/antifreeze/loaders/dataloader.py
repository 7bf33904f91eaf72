"""``DataLoader``: torch's loader by its arguments, with workers that cannot freeze the trainer."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, TypeVar

import torch.utils.data
from torch.utils.data import IterableDataset, default_collate, default_convert

from antifreeze.core import ConfigError
from antifreeze.datasets.tensors import with_own_types
from antifreeze.diagnosis import Report
from antifreeze.loaders._epoch_run import EpochRun
from antifreeze.loaders._epochs import Epochs, LoaderEpoch
from antifreeze.loaders._frameworks import warn_of_accelerate, without_seeders
from antifreeze.loaders._inline import InlineRunner
from antifreeze.loaders._pad_ranks import next_number
from antifreeze.loaders._shared_arguments import (
    checked_interval,
    default_memory_limit,
    make_pool_config,
    split_on_error,
)
from antifreeze.loaders._torch_epoch import TorchEpoch
from antifreeze.pool import History, Pool, PoolCache, PoolConfig, PoolRunner, PrefetchTuner, open_skip_log
from antifreeze.worker import IterableProgram, MapProgram

__all__ = ["DataLoader"]

_TORCH_TAKES = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)


Sample = TypeVar("Sample", covariant=True)


class DataLoader(torch.utils.data.DataLoader[Sample]):
    """Takes every argument of ``torch.utils.data.DataLoader``, and means the same.

    Workers are processes of their own, never forks of this one. A worker that dies or stands still is replaced, and
    what it had to make is made again: the same batches, in the same order. The order of every epoch is torch's for the
    same seeds. Random numbers inside the dataset and ``collate_fn`` belong to the batch: they do not depend on
    ``num_workers``, and do not advance this process's generators.

    Args:
        dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last, timeout,
            worker_init_fn, multiprocessing_context, generator, prefetch_factor, persistent_workers,
            pin_memory_device, in_order: as in torch. ``multiprocessing_context`` is checked and has no effect.
        on_error: ``"raise"``; ``"skip"``, to leave out samples that fail and report them; or a function that is called
            with the error and returns ``"skip"`` or ``"raise"``.
        stall_limit: seconds that a worker may stand still at one sample before it is replaced. By default it depends
            on what the worker does and on how long samples have taken so far.
        max_restarts: how many lost workers of an epoch are replaced before it is given up.
        worker_memory_limit: bytes, or text such as ``"4GB"``, beyond which a worker that has doubled is replaced; by
            default half of the machine's or the container's memory, shared by all workers.
        skip_log: a file to which one line of JSON is added for each sample that is left out.
        uneven_ranks: what an iterable dataset does on a rank whose data ends before that of others: ``"pad"``, go on
            from its beginning until all have ended, so that no collective waits for it; or ``"ignore"``, end.
        snapshot_every_n_steps: of torchdata's ``StatefulDataLoader``, where it sets how old a state may be. Here
            ``state_dict()`` is exact at every step, so it is checked and has no effect.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        on_error: str | Callable[[Any], Any] = "raise",
        stall_limit: float | None = None,
        max_restarts: int = 100,
        worker_memory_limit: int | str | None = None,
        skip_log: str | os.PathLike[str] | None = None,
        uneven_ranks: str = "pad",
        snapshot_every_n_steps: int | None = 1,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _TORCH_TAKES and name != "self"}
        super().__init__(**given)
        self.in_order = in_order
        self.on_error, self.stall_limit, self.max_restarts = on_error, stall_limit, max_restarts
        self.worker_memory_limit, self.skip_log = worker_memory_limit, skip_log
        _, self._decide = split_on_error(on_error)
        self._make_config()  # raises now what is wrong with them
        self._given_prefetch = prefetch_factor
        self._history = History(num_workers, batch_size, open_skip_log(skip_log))
        self._pool_cache = PoolCache(persistent=persistent_workers)
        if uneven_ranks not in ("pad", "ignore"):
            hint = 'it is "pad" or "ignore"'
            raise ConfigError(f"uneven_ranks={uneven_ranks!r} is not known", hint=hint, argument="uneven_ranks")
        self.uneven_ranks = uneven_ranks
        self.snapshot_every_n_steps = checked_interval(snapshot_every_n_steps)
        is_padded = uneven_ranks == "pad" and isinstance(dataset, IterableDataset)
        self._padding_key = f"antifreeze/{next_number()}" if is_padded else None
        self._seed = 0
        self._epochs = Epochs()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate asks for this, and if it is False, does not use this loader but makes one of torch's of it."""
        warn_of_accelerate(self)
        return False

    def check_worker_number_rationality(self) -> None:
        """Do nothing: ``report()`` says how many workers would help, after measuring it."""

    def __iter__(self) -> Any:
        """Return an iterator over one epoch.

        Draws from ``generator``, or from torch's global generator, and from the sampler what torch's loader draws. No
        process is started before the first batch is asked for.
        """
        return self._get_iterator()

    def prestart(self) -> None:
        """Start the processes that workers are forked from, in the background, and return at once.

        They import what the dataset needs and load it, while this process builds the model. Without this call they
        start when the first batch is asked for. If the dataset is changed in between, they load it again. Does nothing
        if ``num_workers`` is 0.

        Raises:
            NotPicklable: if the dataset cannot be sent to a worker process.
        """
        if self.num_workers > 0:
            self._pool_cache.prestart(self._make_program())

    def _get_iterator(self) -> Any:
        """Return an iterator of ours: loaders that never end call this by its private name. Torch's would fork."""
        return EpochRun(TorchEpoch(self, self._epochs, self._make_runner, padding_key=self._padding_key))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the iteration that was begun last: after the last batch that was delivered.

        It has a few KB, and JSON can hold it, but for what ``state_dict()`` of your own dataset or sampler returns:
        that is in it as it is.
        """
        return self._epochs.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Resume where a state was saved with the next iteration; the epochs after it are those that would have come.

        The generators that the loader draws from, torch's global one included, are put where they were when the state
        was saved. What cannot be continued exactly is refused with ``StateMismatch``. With ``strict=False`` the loader
        resumes as well as it can, and a warning says what is lost.
        """
        self._epochs.load_state_dict(self, state, strict=strict)

    def _make_runner(self, tasks: LoaderEpoch) -> Iterator[Any]:
        self._seed = tasks.seed
        if self.num_workers == 0:
            return InlineRunner(
                self._make_program,
                tasks.source,
                self._history,
                on_error=self._make_config().on_error,
                decide=self._decide,
            )
        # Two is what torch writes there if nothing was said. A sampler that must not run ahead keeps to it.
        said = self._given_prefetch is not None or self.prefetch_factor not in (None, 2)
        said |= tasks.indices is not None and not tasks.indices.runs_ahead
        return PoolRunner(
            self._pool_cache,
            self._make_pool,
            tasks.source,
            PrefetchTuner(self.prefetch_factor if said else None),
            self._history,
            number=tasks.number,
            num_workers=self.num_workers,
            in_order=self.in_order,
            timeout_s=self.timeout,
            decide=self._decide,
        )

    def _make_config(self) -> PoolConfig:
        """Return what workers are told. Frameworks set attributes after the loader was made."""
        return make_pool_config(
            num_workers=self.num_workers,
            dataset=type(self.dataset).__name__,
            on_error=split_on_error(self.on_error)[0],
            stall_limit=self.stall_limit,
            max_restarts=self.max_restarts,
            memory_limit=default_memory_limit(self.worker_memory_limit, self.num_workers),
            waits_for_all=without_seeders(self.worker_init_fn) is not None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epochs": self._epochs.copy()}

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and what would help most; return the same as an object."""
        report = self._history.report(**self._pool_cache.facts())
        print(report, file=file or sys.stdout)
        return report

    # -- what an epoch needs ---------------------------------------------------------------------------------------

    def _make_pool(self) -> Pool:
        return Pool(self._make_program(), self._seed, self._make_config())

    def _make_program(self) -> MapProgram | IterableProgram:
        collate: Any = self.collate_fn
        if collate is (default_collate if self._auto_collation else default_convert):
            # The worker has its own, which needs no torch, unless the user has taught torch's more types.
            collate = with_own_types() if self._auto_collation and self.num_workers > 0 else None
        init = without_seeders(self.worker_init_fn)
        common: dict[str, Any] = {"batched": self._auto_collation, "worker_init_fn": init}
        if isinstance(self.dataset, IterableDataset):
            program = IterableProgram(
                self.dataset, collate, batch_size=self.batch_size, drop_last=self.drop_last, **common
            )
            program.in_trainer = self.num_workers == 0
            return program
        return MapProgram(self.dataset, collate, one_by_one=self.on_error != "raise", **common)

    def _renew_workers(self) -> None:
        """Let workers go that stay from epoch to epoch: the dataset is another one than they know."""
        self._pool_cache = PoolCache(persistent=self.persistent_workers)
