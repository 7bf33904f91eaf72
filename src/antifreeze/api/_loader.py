"""The loader: batches of a dataset, decoded ahead."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from antifreeze.api._dataset import StreamingDataset
from antifreeze.api._delivery import Batch
from antifreeze.api._user_code import check_callable
from antifreeze.core import ConfigError
from antifreeze.loader import STALL_LIMIT_S, cut, parse_limit, read_blocks

_AHEAD = 2
_START_METHODS = ("fork", "forkserver", "spawn")


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
        check_callable("collate_fn", collate_fn)
        self.dataset = dataset
        self.batch_size = _at_least("batch_size", batch_size, 1)
        self.num_workers = _at_least("num_workers", num_workers, 0)
        self.prefetch_factor = _AHEAD if prefetch_factor is None else _at_least("prefetch_factor", prefetch_factor, 1)
        self.shuffle = dataset.shuffle if shuffle is None else bool(shuffle)
        self.drop_last = bool(dataset.drop_last if drop_last is None else drop_last)
        self.seed = dataset.seed if seed is None else _at_least("seed", seed, None)
        self.collate_fn, self.pin_memory = collate_fn, bool(pin_memory)
        self.persistent_workers = bool(persistent_workers)
        self.timeout = _seconds(timeout)
        self.epoch = 0
        self.multiprocessing_context = _known_context(multiprocessing_context)
        self._memory_limit = None if memory_limit is None else parse_limit(memory_limit)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        rows = len(self.dataset)
        return rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration is; each iteration moves on by one."""
        self.epoch = _at_least("epoch", epoch, 0)

    def __iter__(self) -> Iterator[Batch]:
        """Return an iterator over one epoch.

        It is lazy: nothing starts, and no epoch is used up, before its first batch is asked for. Frameworks make
        iterators that they throw away.
        """
        epoch, self.epoch = self.epoch, self.epoch + 1
        dataset = self.dataset
        order = dataset._order(self.shuffle, self.seed, epoch, self._memory_limit)
        blocks = read_blocks(
            order,
            dataset._recipe,
            threads=self.num_workers,
            ahead=self.prefetch_factor,
            memory_limit=parse_limit(self._memory_limit),
            stall_limit_s=self.timeout or STALL_LIMIT_S,
        )
        delivery, make = dataset._delivery, dataset._delivery.batch
        code = dataset._user_code(epoch, lambda position: dataset._name(order, position))
        code = replace(code, collate_fn=self.collate_fn, seed=self.seed)
        plain = dataset.transform is None and self.collate_fn is None
        first = 0
        for step, (block, start, stop) in enumerate(cut(blocks, self.batch_size, drop_last=self.drop_last)):
            batch = make(block, start, stop)
            if not plain:
                batch = code.apply(delivery, batch, step, first, stop - start)
            if self.pin_memory:
                batch = delivery.pin(batch)
            first += stop - start
            del block
            yield batch

    def __repr__(self) -> str:
        return f"StreamingDataLoader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"


def _at_least(name: str, value: object, least: int | None) -> int:
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name}={value!r} is not an integer{bound}", hint=f"pass {name} as one", argument=name)
    return number


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigError(
            f"timeout={value!r} is not a number of seconds", hint="pass 0 for the default", argument="timeout"
        )
    return float(value)


def _known_context(value: object) -> object:
    name = value if value is None or isinstance(value, str) else getattr(value, "_name", value)
    if name is not None and name not in _START_METHODS:
        raise ConfigError(
            f"multiprocessing_context={value!r} is not a start method",
            hint=f"it is one of {', '.join(_START_METHODS)}, or a context of multiprocessing; it can be left out",
            argument="multiprocessing_context",
        )
    return value
