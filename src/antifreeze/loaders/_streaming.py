"""The loader: batches of a dataset, decoded ahead."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from antifreeze.core import arguments as check
from antifreeze.datasets import Batch, RowSource, parse_limit
from antifreeze.diagnosis import Report
from antifreeze.distributed import find_ranks
from antifreeze.loaders._epoch_run import EpochRun
from antifreeze.loaders._position import MAX_EPOCH
from antifreeze.loaders._refused_arguments import INSTEAD, checked_dataset, refuse
from antifreeze.loaders._row_tasks import RowWorkers
from antifreeze.loaders._shared_arguments import default_memory_limit, make_pool_config, split_on_error
from antifreeze.loaders._stream_run import StreamEpoch, StreamRun, user_code_of
from antifreeze.plan import MAX_LANES
from antifreeze.pool import History, open_skip_log

_AHEAD = 2


class StreamingDataLoader:
    """Batches of a ``StreamingDataset``.

    Rows are decoded by threads. A transform or a collate function runs in worker processes, which are watched: one that
    dies or stands still is replaced, and its batches are made again. Nothing is started until the first batch is asked
    for, and everything ends with the iteration.

    Args:
        dataset: what to read.
        batch_size: rows in a batch.
        shuffle: whether to shuffle; by default what the dataset says.
        num_workers: decoder threads, and as many worker processes if there is a transform or a collate function. With
            0, everything happens in the calling thread.
        collate_fn: a function that makes a batch of a list of rows, as in torch.
        pin_memory: whether tensors are put in page-locked memory, if there is an accelerator.
        drop_last: whether a last batch that is not full is left out; by default what the dataset says, else False.
        timeout: seconds without any progress after which ``next`` raises ``Stalled``; 0 means 120.
        worker_init_fn: a function that each worker process calls with its number when it starts, as in torch. Without
            worker processes it is not called.
        multiprocessing_context: accepted, and without effect: this process is never forked.
        prefetch_factor: how many row groups for each thread, or windows when shuffling, may be in work at a time.
        persistent_workers: whether worker processes stay for the next epoch.
        seed: what the order depends on, together with the epoch; by default the dataset's.
        memory_limit: bytes, or text such as ``"256MB"``, that bound the decoded rows that were not delivered yet; by
            default an eighth of what the machine or the container has.
        on_error: ``"raise"``; ``"skip"``, to leave out rows whose transform fails and report them; or a function that
            is called with the error and returns ``"skip"`` or ``"raise"``.
        stall_limit: seconds that a worker process may stand still at one row before it is replaced. By default it
            depends on what the worker does and on how long rows have taken so far.
        max_restarts: how many lost workers of an epoch are replaced before it is given up.
        worker_memory_limit: bytes, or text such as ``"4GB"``, beyond which a worker that has doubled is replaced.
        skip_log: a file to which one line of JSON is added for each row that is left out.
        rank, world_size: which part of the data this process reads; by default what ``torch.distributed`` says, or the
            environment of torchrun, SLURM, MPI or Lightning.
        lanes: the number of parts that an epoch is split into. A run can go on with any number of ranks; one that
            divides this number costs nothing. By default the ranks, or a multiple of them.
        pin_memory_device, in_order, profile_dir, profile_skip_batches: accepted, and without effect: memory is pinned
            for the accelerator that torch uses, batches always come in order, and profiles are not written.
        sampler, batch_sampler, generator, profile_batches, profile_cprofile: refused unless they ask for nothing; the
            error says what to do instead.
    """

    @check.explained("StreamingDataLoader", instead=INSTEAD)
    def __init__(
        self,
        dataset: RowSource,
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
        config = make_pool_config(
            num_workers=self.num_workers,
            dataset="StreamingDataset",
            on_error=mode,
            stall_limit=stall_limit,
            max_restarts=max_restarts,
            memory_limit=default_memory_limit(worker_memory_limit, self.num_workers),
            waits_for_all=worker_init_fn is not None,
        )
        self._history = History(self.num_workers, self.batch_size, open_skip_log(skip_log))
        self._workers = RowWorkers(
            self._history, config, decide, persistent=self.persistent_workers, prefetch_factor=prefetch_factor
        )
        self._run = StreamRun(self._history, self._workers)

    def __len__(self) -> int:
        """Return the number of batches in an epoch; it is the same on every rank."""
        return self._run.num_steps(self)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over one epoch, or over what is left of it after ``load_state_dict``.

        It is lazy: nothing starts, and no epoch is used up, before its first batch is asked for. Frameworks make
        iterators that they throw away.
        """
        return EpochRun(StreamEpoch(self._run, self))

    def prestart(self) -> None:
        """Start the processes that workers are forked from, in the background, and return at once.

        They import what the transform needs, while this process builds the model. Without this call they start when
        the first batch is asked for. Does nothing if there is no user code to run, or ``num_workers`` is 0.

        Raises:
            NotPicklable: if the transform or the collate function cannot be sent to a worker process.
        """
        code = user_code_of(self)
        if self.num_workers > 0 and not code.is_empty:
            self._workers.prestart(self, code)

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iteration is."""
        return self._run.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._run.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration is; each iteration moves on by one."""
        self._run.set_epoch(check.integer("epoch", epoch, 0, MAX_EPOCH))

    @property
    def current_epoch(self) -> int:
        """The number of the epoch that runs, or that ran last, from 1 on; 0 before the first."""
        return self.epoch

    @current_epoch.setter
    def current_epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run: after the last batch that was delivered. JSON can hold it; it is small."""
        return self._run.state_dict(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool | None = None) -> None:
        """Resume with the next iteration where a state was saved, on any number of ranks and workers.

        What cannot be continued exactly is refused, or only warned of with ``strict=False``, which is the default for a
        dataset that was made with ``force_override_state_dict=True``.
        """
        if state is None or state == {}:
            return  # frameworks give what was saved before there was a state
        strict = not self.dataset.force_override_state_dict if strict is None else strict
        self._run.load_state_dict(self, state, strict=strict)

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and what would help most; return the same as an object."""
        report = self._history.report(**self._workers.facts())
        print(report, file=file or sys.stdout)
        return report

    def __repr__(self) -> str:
        return f"StreamingDataLoader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"
