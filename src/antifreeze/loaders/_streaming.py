"""The loader: batches of a dataset, decoded ahead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from antifreeze.core import arguments as check
from antifreeze.datasets import Batch, RowDataset, parse_limit
from antifreeze.diagnosis import History, Report, open_skip_log
from antifreeze.distributed import find_ranks
from antifreeze.loaders._epoch_run import EpochRun
from antifreeze.loaders._loader_arguments import (
    INSTEAD,
    checked_dataset,
    checked_limits,
    default_memory_limit,
    refuse,
    split_on_error,
)
from antifreeze.loaders._position import MAX_EPOCH
from antifreeze.loaders._stream_run import StreamEpoch, StreamRun, user_code_of
from antifreeze.plan import MAX_LANES

_AHEAD = 2


class StreamingDataLoader:
    """Batches of a ``StreamingDataset``.

    Threads decode rows. A transform or a collate function runs in worker processes, which are supervised: one that
    exits or stalls is restarted, and its batches are made again. Nothing starts until the first batch is requested,
    and everything ends with the iteration.

    Args:
        dataset: A ``StreamingDataset``, ``CombinedStreamingDataset`` or ``ParallelStreamingDataset``.
        batch_size: Number of rows in a batch.
        shuffle: True to shuffle; by default the dataset's setting.
        sampler: Accepted for torch's signature; must be None. Use ``dataset.subset``.
        batch_sampler: Accepted for torch's signature; must be None.
        num_workers: Number of decoder threads, and of worker processes if there is a transform or a collate function.
            With 0, everything happens in the calling thread.
        collate_fn: Function that makes a batch from a list of rows, as in torch.
        pin_memory: True to put tensors in page-locked memory, if there is an accelerator.
        drop_last: True to drop an incomplete last batch; by default the dataset's setting, else False.
        timeout: Seconds without any progress after which ``next`` raises ``Stalled``; 0 means 120.
        worker_init_fn: Function that each worker process calls with its number when it starts, as in torch. Without
            worker processes it is not called.
        multiprocessing_context: Accepted for torch's signature; no effect: this process is never forked.
        generator: Accepted for torch's signature; must be None. Use ``seed``.
        prefetch_factor: Number of row groups for each thread, or of windows when shuffling, that may be in progress.
        persistent_workers: True to keep worker processes for the next epoch.
        pin_memory_device: Accepted for torch's signature; no effect.
        in_order: Accepted for torch's signature; no effect: batches always arrive in order.
        profile_batches: Accepted for code written for litData; must be False. Use ``report()``.
        profile_skip_batches: Accepted for code written for litData; no effect.
        profile_dir: Accepted for code written for litData; no effect.
        profile_cprofile: Accepted for code written for litData; must be False.
        seed: Determines the order, together with the epoch; by default the dataset's.
        memory_limit: Limit on decoded rows that were not delivered yet: bytes, or text such as ``"256MB"``. By default
            an eighth of the memory of the machine or the container.
        on_error: ``"raise"``; ``"skip"`` to skip rows whose transform fails and report them; or a function that is
            called with the error and returns ``"skip"`` or ``"raise"``.
        stall_limit: Seconds without progress at one row after which a worker process is restarted. By default it
            depends on what the worker does and on how long rows have taken so far.
        max_restarts: Number of lost workers that are restarted in an epoch before it fails.
        worker_memory_limit: Bytes, or text such as ``"4GB"``, above which a worker that has doubled in size is
            replaced.
        skip_log: File to which one line of JSON is appended for each skipped row.
        rank: Rank of this process; by default that of ``torch.distributed``, or of the environment of torchrun, SLURM,
            MPI or Lightning.
        world_size: Number of ranks; found in the same way.
        lanes: Number of lanes that an epoch is split into. A run resumes on any number of ranks; one that divides this
            number costs nothing. By default the number of ranks, or a multiple of it.

    Raises:
        ConfigError: If an argument has a wrong value.

    Example:
        ```python
        import antifreeze as af

        dataset = af.StreamingDataset("data/train", columns=["ids", "labels"], shuffle=True)
        loader = af.StreamingDataLoader(dataset, batch_size=256, num_workers=2)
        for batch in loader:
            print(batch["ids"].shape)
        loader.report()
        ```
    """

    @check.explained("StreamingDataLoader", instead=INSTEAD)
    def __init__(
        self,
        dataset: RowDataset,
        batch_size: int = 1,
        shuffle: bool | None = None,
        sampler: None = None,
        batch_sampler: None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",  # noqa: ARG002
        in_order: bool = True,  # noqa: ARG002
        profile_batches: bool | int = False,
        profile_skip_batches: int = 0,  # noqa: ARG002
        profile_dir: object = None,  # noqa: ARG002
        profile_cprofile: bool = False,
        seed: int | None = None,
        memory_limit: int | str | None = None,
        on_error: str | Callable[[Any], Any] = "raise",
        stall_limit: float | None = None,
        max_restarts: int = 100,
        worker_memory_limit: int | str | None = None,
        skip_log: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
    ) -> None:
        self.dataset = dataset = checked_dataset(dataset)
        asked = {"sampler": sampler, "batch_sampler": batch_sampler, "generator": generator, "batch_size": batch_size}
        refuse(**asked, profile_batches=profile_batches, profile_cprofile=profile_cprofile)
        self.batch_size = check.integer("batch_size", batch_size, 1)
        self.num_workers = check.integer("num_workers", num_workers, 0)
        self.prefetch_factor = (
            _AHEAD if prefetch_factor is None else check.integer("prefetch_factor", prefetch_factor, 1)
        )
        self.shuffle = dataset.shuffle if shuffle is None else check.flag("shuffle", shuffle)
        self.drop_last = dataset.drop_last if drop_last is None else check.flag("drop_last", drop_last)
        self.seed = dataset.seed if seed is None else check.integer("seed", seed)
        check.function("collate_fn", collate_fn)
        check.function("worker_init_fn", worker_init_fn)
        self.collate_fn, self.worker_init_fn = collate_fn, worker_init_fn
        self.pin_memory = check.flag("pin_memory", pin_memory)
        self.persistent_workers = check.flag("persistent_workers", persistent_workers)
        self.timeout = check.seconds("timeout", timeout)
        self.rank, self.world_size = rank, world_size
        if (rank, world_size) != (None, None):
            find_ranks(rank, world_size)  # raises now what is wrong with them
        self.lanes = None if lanes is None else check.integer("lanes", lanes, 1, MAX_LANES)
        self.multiprocessing_context = check.start_method("multiprocessing_context", multiprocessing_context)
        self.memory_limit = None if memory_limit is None else parse_limit(memory_limit)
        self.on_error, self.stall_limit, self.max_restarts = on_error, stall_limit, max_restarts
        mode, decide = split_on_error(on_error)
        self._history = History(self.num_workers, self.batch_size, open_skip_log(skip_log))
        self._run = StreamRun(
            self._history,
            decide=decide,
            persistent=self.persistent_workers,
            prefetch_factor=prefetch_factor,
            num_workers=self.num_workers,
            on_error=mode,
            stall_limit_s=checked_limits(stall_limit),
            max_restarts=check.integer("max_restarts", max_restarts, 0),
            memory_limit=default_memory_limit(worker_memory_limit, self.num_workers),
            waits_for_all=worker_init_fn is not None,
        )

    def __len__(self) -> int:
        """Return the number of batches in an epoch, which is the same on every rank.

        Raises:
            TypeError: If the dataset is infinite.
        """
        return self._run.num_steps(self)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over one epoch, or over the rest of it after ``load_state_dict``.

        It is lazy: nothing starts, and no epoch is used up, before its first batch is requested. Frameworks create
        iterators that they discard.

        Returns:
            An iterator of batches: a dict of tensors, arrays or a ``RecordBatch``, or what ``collate_fn`` returns.

        Raises:
            Stalled: From ``next``, if nothing has made progress for ``timeout`` seconds, or one row cost two workers.
            WorkerDied: From ``next``, if workers were lost too often.
            UserCodeError: From ``next``, if a transform or ``collate_fn`` raised.
            DataError: From ``next``, if the contents of a file could not be read.
        """
        return EpochRun(StreamEpoch(self._run, self))

    def prestart(self) -> None:
        """Start the processes that workers are forked from, in the background, and return at once.

        They import what the transform needs, while this process builds the model. Without this call they start when
        the first batch is requested. Does nothing if there is no user code to run, or ``num_workers`` is 0.

        Raises:
            NotPicklable: If the transform or the collate function cannot be sent to a worker process.
        """
        code = user_code_of(self)
        if self.num_workers > 0 and not code.is_empty:
            self._run.workers.prestart(self, code)

    @property
    def epoch(self) -> int:
        """Number of the epoch that comes next, counted from 0."""
        return self._run.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._run.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; each iteration advances it by one.

        Args:
            epoch: Number of the epoch, counted from 0.

        Raises:
            ConfigError: If it is not an integer >= 0.
        """
        self._run.set_epoch(check.integer("epoch", epoch, 0, MAX_EPOCH))

    @property
    def current_epoch(self) -> int:
        """Number of the epoch that is running, or ran last, counted from 1; 0 before the first."""
        return self.epoch

    @current_epoch.setter
    def current_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: after the last batch that was delivered.

        Returns:
            A small dict that can be saved as JSON.
        """
        return self._run.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume from a state with the next iteration, on any number of ranks and workers.

        Args:
            state: What ``state_dict()`` returned.
            strict: False to resume with a warning where the run cannot be resumed exactly. By default True, unless the
                dataset was created with ``force_override_state_dict=True``.

        Raises:
            StateMismatch: If the state is damaged, or the run cannot be resumed exactly from it.

        Example:
            ```python
            import antifreeze as af

            dataset = af.StreamingDataset("data/train", shuffle=True, columns=["ids"])
            loader = af.StreamingDataLoader(dataset, batch_size=64, num_workers=2)
            first = next(iter(loader))
            state = loader.state_dict()

            resumed = af.StreamingDataLoader(dataset, batch_size=64)
            resumed.load_state_dict(state)
            second = next(iter(resumed))
            ```
        """
        if state is None or state == {}:
            return  # frameworks give what was saved before there was a state
        strict = not self.dataset.force_override_state_dict if strict is None else strict
        self._run.load_state_dict(self, state, strict=strict)

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and which settings would help most.

        Args:
            file: Where to print; by default standard output.

        Returns:
            The same facts as an object.
        """
        report = self._run.report()
        print(report, file=file or sys.stdout)
        return report

    def __repr__(self) -> str:
        return f"StreamingDataLoader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"
