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
from antifreeze.core import arguments as check
from antifreeze.datasets.tensors import with_own_types
from antifreeze.diagnosis import History, Report, open_skip_log
from antifreeze.loaders._epoch_run import EpochRun
from antifreeze.loaders._frameworks import warn_of_accelerate, without_seeders
from antifreeze.loaders._inline import InlineRunner
from antifreeze.loaders._loader_arguments import (
    checked_interval,
    checked_limits,
    default_memory_limit,
    split_on_error,
)
from antifreeze.loaders._pad_ranks import next_number
from antifreeze.loaders._torch_epoch import Epochs, LoaderEpoch, TorchEpoch
from antifreeze.pool import Pool, PoolCache, PoolConfig, PoolRunner, PrefetchTuner
from antifreeze.worker import IterableProgram, MapProgram

__all__ = ["DataLoader"]

_TORCH_TAKES = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)


Sample = TypeVar("Sample", covariant=True)


class DataLoader(torch.utils.data.DataLoader[Sample]):
    """A drop-in replacement for ``torch.utils.data.DataLoader``: the same arguments with the same meaning.

    Workers are never forks of this process. A worker that exits or stalls is restarted, and its batches are made again:
    the same batches, in the same order. The order of every epoch is torch's for the same seeds. Random numbers inside
    the dataset and ``collate_fn`` belong to the batch: they do not depend on ``num_workers``, and do not advance the
    generators of this process.

    Args:
        dataset: A map-style or iterable dataset, as in torch.
        batch_size: Number of samples in a batch, or None to deliver samples one by one, as in torch.
        shuffle: True to shuffle in every epoch, as in torch.
        sampler: What draws indices, as in torch.
        batch_sampler: What draws lists of indices, as in torch.
        num_workers: Number of worker processes. With 0, everything happens in the calling thread, unsupervised.
        collate_fn: Function that makes a batch from a list of samples, as in torch.
        pin_memory: True to put tensors in page-locked memory, in the thread that calls ``next``.
        drop_last: True to drop an incomplete last batch, as in torch.
        timeout: Limit on the wait for one batch in seconds, without the start of workers; 0 means none.
        worker_init_fn: Function that each worker calls with its number when it starts, as in torch.
        multiprocessing_context: Checked, and without effect: this process is never forked.
        generator: What the order and the seeds of batches are drawn from, as in torch.
        prefetch_factor: Number of batches in progress for each worker; by default adapted to how long they take.
        persistent_workers: True to keep workers for the next epoch, as in torch.
        pin_memory_device: As in torch.
        in_order: False to deliver batches as soon as they are ready, as in torch.
        on_error: ``"raise"``; ``"skip"`` to skip failing samples and report them; or a function that is called with
            the error and returns ``"skip"`` or ``"raise"``.
        stall_limit: Seconds without progress at one sample after which a worker is restarted. By default it depends on
            what the worker does and on how long samples have taken so far.
        max_restarts: Number of lost workers that are restarted in an epoch before it fails.
        worker_memory_limit: Bytes, or text such as ``"4GB"``, above which a worker that has doubled in size is
            replaced; by default half of the memory of the machine or the container, divided by the number of workers.
        skip_log: File to which one line of JSON is appended for each skipped sample.
        uneven_ranks: What an iterable dataset does on a rank whose data ends before that of others: ``"pad"`` to
            restart from its beginning until all have ended, so that no collective waits; or ``"ignore"`` to end.
        snapshot_every_n_steps: Accepted for torchdata's ``StatefulDataLoader``; checked, and without effect:
            ``state_dict()`` is exact at every step.

    Raises:
        ConfigError: If an argument that torch does not have has a wrong value.
        ValueError: If an argument of torch has a wrong value, as in torch.

    Example:
        ```python
        from antifreeze import DataLoader

        loader = DataLoader(range(1000), batch_size=64, shuffle=True, num_workers=2, on_error="skip")
        for batch in loader:
            print(batch.shape)
        loader.report()
        ```
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
        """Return an iterator over one epoch, or over the rest of it after ``load_state_dict``.

        Draws from ``generator``, or from torch's global generator, and from the sampler what torch's loader draws. No
        process starts before the first batch is requested.

        Returns:
            An iterator of batches.

        Raises:
            UserCodeError: From ``next``, if the dataset or ``collate_fn`` raised; also of the type that they raised.
            Stalled: From ``next``, if ``timeout`` has passed, or one sample stalled two workers.
            WorkerDied: From ``next``, if one sample cost two workers, or workers were lost too often.
            NotPicklable: From ``next``, if the dataset or a batch cannot be sent between processes.
            DuplicateData: From ``next``, if an iterable dataset gives every worker the same samples.
            NotRepeatable: From ``next``, if an iterable dataset cannot resume where a lost worker stopped.
        """
        return self._get_iterator()

    def prestart(self) -> None:
        """Start the processes that workers are forked from, in the background, and return at once.

        They import what the dataset needs and load it, while this process builds the model. Without this call they
        start when the first batch is requested. If the dataset is changed in between, they load it again. Does nothing
        if ``num_workers`` is 0.

        Raises:
            NotPicklable: If the dataset cannot be sent to a worker process.
        """
        if self.num_workers > 0:
            self._pool_cache.prestart(self._make_program())

    def _get_iterator(self) -> Any:
        """Return an iterator of ours: loaders that never end call this by its private name. Torch's would fork."""
        epoch = TorchEpoch(
            self,
            self._epochs,
            self._make_runner,
            padding_key=self._padding_key,
            known_length=self._IterableDataset_len_called,
        )
        return EpochRun(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the latest iteration: after the last batch that was delivered.

        Returns:
            A dict of a few KB that can be saved as JSON, except for what ``state_dict()`` of your own dataset or
            sampler returned, which it holds unchanged.
        """
        return self._epochs.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Resume from a state with the next iteration, with any number of workers; later epochs are unchanged, too.

        The generators that the loader draws from, torch's global one included, are set to where they were when the
        state was saved.

        Args:
            state: What ``state_dict()`` returned.
            strict: False to resume as well as possible, with a warning that says what is lost.

        Raises:
            StateMismatch: If the state is damaged, or the run cannot be resumed exactly from it.
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
        """Return the settings of workers. Frameworks set attributes after the loader was made."""
        return PoolConfig(
            num_workers=self.num_workers,
            dataset=type(self.dataset).__name__,
            on_error=split_on_error(self.on_error)[0],
            stall_limit_s=checked_limits(self.stall_limit),
            max_restarts=check.integer("max_restarts", self.max_restarts, 0),
            memory_limit=default_memory_limit(self.worker_memory_limit, self.num_workers),
            waits_for_all=without_seeders(self.worker_init_fn) is not None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epochs": self._epochs.copy()}

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and which settings would help most.

        Args:
            file: Where to print; by default standard output.

        Returns:
            The same facts as an object.
        """
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

    def renew_workers(self) -> None:
        """Let workers go that stay from epoch to epoch. Called when the dataset is another one than they know."""
        self._pool_cache = PoolCache(persistent=self.persistent_workers)
