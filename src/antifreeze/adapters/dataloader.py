"""``DataLoader``: torch's loader by its arguments, with workers that cannot freeze the trainer."""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed
import torch.utils.data
from torch.utils.data import IterableDataset, default_collate, default_convert

from antifreeze.adapters._even_ranks import EvenRanks, next_number, take_part
from antifreeze.adapters._inline import InlineBatches
from antifreeze.adapters._terms import default_memory_limit, make_terms, split_on_error
from antifreeze.adapters.torch import pin
from antifreeze.child import IterableProgram, MapProgram
from antifreeze.core import ConfigError
from antifreeze.crew import Batches, Crew, History, IndexSource, Pace, Quarters, ShareSource, Source, Terms
from antifreeze.supervise import Report

__all__ = ["DataLoader"]

_TORCH_TAKES = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Takes every argument of ``torch.utils.data.DataLoader``, and means the same.

    Workers are processes of their own, never forks of this one. A worker that dies or stands still is replaced, and
    what it had to make is made again: the same batches, in the same order. Random numbers belong to the batch, so they
    do not depend on ``num_workers``, and this process's own are not touched.

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
    ) -> None:
        given = {name: value for name, value in locals().items() if name in _TORCH_TAKES and name != "self"}
        super().__init__(**given)
        self.in_order = in_order
        self.on_error, self.stall_limit, self.max_restarts = on_error, stall_limit, max_restarts
        self.worker_memory_limit, self.skip_log = worker_memory_limit, skip_log
        _, self._decide = split_on_error(on_error)
        self._make_terms()  # raises now what is wrong with them
        self._given_prefetch = prefetch_factor
        self._history = History(num_workers, batch_size, Path(skip_log) if skip_log is not None else None)
        self._quarters = Quarters(self._make_crew, persistent=persistent_workers)
        self._epochs = 0
        if uneven_ranks not in ("pad", "ignore"):
            hint = 'it is "pad" or "ignore"'
            raise ConfigError(f"uneven_ranks={uneven_ranks!r} is not known", hint=hint, argument="uneven_ranks")
        self.uneven_ranks = uneven_ranks
        self._uneven = uneven_ranks == "pad" and isinstance(dataset, IterableDataset)
        self._number = next_number() if self._uneven else -1
        self._random: torch.Generator | None = None
        self._seen = 0
        """The seed that torch had when this loader last looked at it."""
        self._seed = 0

    def check_worker_number_rationality(self) -> None:
        """Do nothing: ``report()`` says how many workers would help, after measuring it."""

    def __iter__(self) -> Any:
        """Return an iterator over one epoch. Nothing is started or drawn before its first batch is asked for."""
        batches = self._batches()
        if self._uneven and take_part(torch.distributed):
            key = f"antifreeze/{self._number}/{self._epochs}"
            batches = EvenRanks(batches, self._batches, key, torch.distributed)
        return _Iterator(batches, self)

    def _batches(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return InlineBatches(
                self._make_program,
                lambda: self._make_source(self._next_epoch()),
                self._history,
                on_error=self._make_terms().on_error,
                decide=self._decide,
            )
        # Two is what torch writes there if nothing was said.
        said = self._given_prefetch is not None or self.prefetch_factor not in (None, 2)
        return Batches(
            self._quarters,
            self._make_source,
            Pace(self.prefetch_factor if said else None),
            self._history,
            number=self._next_epoch,
            num_workers=self.num_workers,
            in_order=self.in_order,
            timeout_s=self.timeout,
            decide=self._decide,
        )

    def _next_epoch(self) -> int:
        number, self._epochs = self._epochs, self._epochs + 1
        return number

    def _make_terms(self) -> Terms:
        """Return what workers are told. Frameworks set attributes after the loader was made."""
        return make_terms(
            num_workers=self.num_workers,
            dataset=type(self.dataset).__name__,
            on_error=split_on_error(self.on_error)[0],
            stall_limit=self.stall_limit,
            max_restarts=self.max_restarts,
            memory_limit=default_memory_limit(self.worker_memory_limit, self.num_workers),
            waits_for_all=self.worker_init_fn is not None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_random": None}

    def report(self, file: IO[str] | None = None) -> Report:
        """Print what happened so far, and what would help most; return the same as an object."""
        report = self._history.report()
        print(report, file=file or sys.stdout)
        return report

    # -- what an epoch needs ---------------------------------------------------------------------------------------

    def _make_crew(self) -> Crew:
        return Crew(self._make_program(), self._seed, self._make_terms())

    def _make_program(self) -> MapProgram | IterableProgram:
        collate: Any = self.collate_fn
        if collate is (default_collate if self._auto_collation else default_convert):
            collate = None  # the worker has its own, which needs no torch
        common: dict[str, Any] = {"batched": self._auto_collation, "worker_init_fn": self.worker_init_fn}
        if isinstance(self.dataset, IterableDataset):
            return IterableProgram(
                self.dataset, collate, batch_size=self.batch_size, drop_last=self.drop_last, **common
            )
        return MapProgram(self.dataset, collate, **common)

    def _make_source(self, number: int) -> Source:
        """Draw this epoch's seed and start its sampler, in the order in which torch's loader does both."""
        self._seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator or self._own()).item())
        if isinstance(self.dataset, IterableDataset):
            return ShareSource(
                max(1, self.num_workers), epoch=number, seed=self._seed, dataset=type(self.dataset).__name__
            )
        return IndexSource(self._indices(), epoch=number, seed=self._seed, dataset=type(self.dataset).__name__)

    def _own(self) -> torch.Generator:
        """Return the generator that this loader draws from instead of the trainer's.

        It begins with the trainer's state, and again when torch was seeded anew; what the trainer draws in between does
        not change a batch.
        """
        if self._random is None or torch.initial_seed() != self._seen:
            self._random = torch.Generator()
            self._random.set_state(torch.get_rng_state())
            self._seen = torch.initial_seed()
        return self._random

    def _indices(self) -> Iterator[Any]:
        indices: Iterator[Any] = iter(self._index_sampler)
        if not _is_torchs(self._index_sampler):
            return indices
        # Torch's samplers draw from the trainer's random numbers when they give their first index, and only then.
        own, before = self._own(), torch.get_rng_state()
        torch.set_rng_state(own.get_state())
        try:
            first = list(itertools.islice(indices, 1))
            own.set_state(torch.get_rng_state())
        finally:
            torch.set_rng_state(before)
        return itertools.chain(first, indices)


def _is_torchs(sampler: Any) -> bool:
    inner = getattr(sampler, "sampler", None)
    return type(sampler).__module__.startswith("torch.") and (inner is None or _is_torchs(inner))


class _Iterator:
    """An epoch as torch's loader gives it: it can be asked for its length, too."""

    def __init__(self, batches: Iterator[Any], loader: DataLoader) -> None:
        self._batches, self._loader = batches, loader

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        return pin(batch) if self._loader.pin_memory else batch

    def __len__(self) -> int:
        return len(self._loader)
