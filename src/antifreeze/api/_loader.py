"""The loader: batches of a dataset, decoded ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from antifreeze.api import _arguments as check
from antifreeze.api._dataset import StreamingDataset
from antifreeze.api._delivery import Batch
from antifreeze.api._user_code import UserCode
from antifreeze.core import ConfigError
from antifreeze.loader import STALL_LIMIT_S, cut, parse_limit, read_blocks
from antifreeze.plan import locate
from antifreeze.workers import Blocks

_AHEAD = 2


class StreamingDataLoader:
    """Batches of a ``StreamingDataset``.

    Nothing is started until the first batch is asked for, and everything ends with the iteration.

    Args:
        dataset: what to read.
        batch_size: rows in a batch.
        shuffle: whether to shuffle; by default what the dataset says.
        num_workers: decoder threads. With 0, everything happens in the calling thread.
        collate_fn: a function that makes a batch of a list of rows, as in torch.
        pin_memory: whether tensors are put in page-locked memory, if there is an accelerator.
        drop_last: whether a last batch that is not full is left out; by default what the dataset says, else False.
        timeout: seconds without any progress after which ``next`` raises ``Stalled``; 0 means 120.
        prefetch_factor: how many row groups for each thread, or windows when shuffling, may be in work at a time.
        seed: what the order depends on, together with the epoch; by default the dataset's.
        memory_limit: bytes, or text such as ``"256MB"``, that bound the decoded rows that were not delivered yet; by
            default an eighth of what the machine or the container has.
        multiprocessing_context, persistent_workers: accepted, and without effect: nothing is forked or spawned.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int = 1,
        shuffle: bool | None = None,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool | None = None,
        timeout: float = 0,
        prefetch_factor: int | None = None,
        seed: int | None = None,
        memory_limit: int | str | None = None,
        multiprocessing_context: object = None,
        persistent_workers: bool = False,
    ) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise ConfigError(
                f"dataset is a {type(dataset).__name__}; this loader reads antifreeze.StreamingDataset",
                hint="wrap your files in antifreeze.StreamingDataset(path)",
                argument="dataset",
            )
        check.function("collate_fn", collate_fn)
        self.dataset = dataset
        self.batch_size = check.integer("batch_size", batch_size, 1)
        self.num_workers = check.integer("num_workers", num_workers, 0)
        self.prefetch_factor = (
            _AHEAD if prefetch_factor is None else check.integer("prefetch_factor", prefetch_factor, 1)
        )
        self.shuffle = dataset.shuffle if shuffle is None else check.flag("shuffle", shuffle)
        self.drop_last = dataset.drop_last if drop_last is None else check.flag("drop_last", drop_last)
        self.seed = dataset.seed if seed is None else check.integer("seed", seed)
        self.collate_fn, self.pin_memory = collate_fn, check.flag("pin_memory", pin_memory)
        self.persistent_workers = check.flag("persistent_workers", persistent_workers)
        self.timeout = check.seconds("timeout", timeout)
        self.epoch = 0
        self.multiprocessing_context = check.start_method("multiprocessing_context", multiprocessing_context)
        self._memory_limit = None if memory_limit is None else parse_limit(memory_limit)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        rows = len(self.dataset)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration is; each iteration moves on by one."""
        self.epoch = check.integer("epoch", epoch, 0)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over one epoch.

        It is lazy: nothing starts, and no epoch is used up, before its first batch is asked for. Frameworks make
        iterators that they throw away.
        """
        epoch, self.epoch = self.epoch, self.epoch + 1
        dataset, stall_limit_s = self.dataset, self.timeout or STALL_LIMIT_S
        if self.num_workers:
            dataset._look(stall_limit_s)
        order = dataset._order(self.shuffle, self.seed, epoch, self._memory_limit)
        code = dataset._user_code(epoch, lambda position: dataset._name(*locate(order, position)))
        code = replace(code, collate_fn=self.collate_fn, seed=self.seed)
        blocks = read_blocks(
            order,
            dataset._recipe,
            threads=self.num_workers,
            ahead=self.prefetch_factor,
            memory_limit=parse_limit(self._memory_limit),
            stall_limit_s=stall_limit_s,
        )
        # Closed here, not when it is dropped: an error that the user keeps holds this frame, and with it the threads.
        with closing(blocks):
            yield from self._batches(blocks, code)

    def _batches(self, blocks: Blocks, code: UserCode) -> Iterator[Batch]:
        delivery = self.dataset._delivery
        plain = code.transform is None and code.collate_fn is None
        first = 0
        for step, (block, start, stop) in enumerate(cut(blocks, self.batch_size, drop_last=self.drop_last)):
            blocks.check_process()
            batch = delivery.batch(block, start, stop)
            del block
            if not plain:
                batch = code.apply(delivery, batch, step, first, stop - start)
            if self.pin_memory:
                batch = delivery.pin(batch)
            first += stop - start
            yield batch

    def __repr__(self) -> str:
        return f"StreamingDataLoader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"
