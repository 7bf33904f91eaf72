"""What user code makes of one row: a tree that mirrors how datasets are made of others, and travels to workers."""

from __future__ import annotations

import bisect
import random
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from antifreeze.core import ConfigError, step_seed
from antifreeze.datasets._delivery import Batch, Delivery, leaf_and_row


@dataclass(frozen=True, slots=True)
class Batched:
    """A function of a whole batch; see ``batched``."""

    function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __get__(self, instance: object, owner: type | None = None) -> Batched:
        """Bind a method that is marked in a class, as Python binds one that is not."""
        bind = getattr(self.function, "__get__", None)
        return self if instance is None or bind is None else Batched(bind(instance, owner))


def batched(function: Callable[..., Any]) -> Batched:
    """Mark a transform that takes a whole batch instead of one row. Can be used as a decorator.

    Args:
        function: Function of a batch: a dict of tensors or arrays, or a ``RecordBatch``.

    Returns:
        The function, marked.

    Example:
        ```python
        import antifreeze as af


        @af.batched
        def scaled(batch):
            batch["ids"] = batch["ids"] / 1000
            return batch


        dataset = af.StreamingDataset("data/train", columns=["ids"], transform=scaled)
        ```
    """
    return Batched(function)


_NONE_HINT = "it must return something for every input; rows cannot be left out by returning None"


def call(function: Callable[..., Any], *arguments: Any, what: str, position: int) -> Any:
    """Return what a function of the user returns; what it raises is a ``UserError``."""
    try:
        result = function(*arguments)
    # Border: user code may raise anything, and StopIteration among it would end the epoch in silence.
    except BaseException as error:
        # Imported where user code has failed: reading without it needs nothing of worker processes.
        from antifreeze.worker import UserError

        raise UserError(what, error, position=position, can_skip=position >= 0) from error
    if result is None:
        from antifreeze.worker import FailureReason, UserError

        none, reason = TypeError(_NONE_HINT), FailureReason.RETURNED_NONE
        raise UserError(what, none, position=position, can_skip=position >= 0, reason=reason)
    return result


# -- random numbers for transforms that ask for generators ---------------------------------------------------------


class Moment:
    """Which batch of which epoch is made: what its random numbers depend on."""

    __slots__ = ("_made", "epoch", "sample", "seed")

    def __init__(self, seed: int, epoch: int, sample: int) -> None:
        self.seed, self.epoch, self.sample = seed, epoch, sample
        self._made: BatchGenerators | None = None

    def generators(self, *, same_in_every_epoch: bool) -> BatchGenerators:
        """Return the generators of this batch; its rows share them."""
        if self._made is None:
            epoch = 0 if same_in_every_epoch else self.epoch
            batch_seed = step_seed(seed=self.seed, epoch=epoch, step=self.sample)
            # Other numbers than the module-level functions of ``random``, NumPy and torch give in this batch.
            self._made = BatchGenerators(step_seed(seed=batch_seed, epoch=0, step=1))
        return self._made


class BatchGenerators(Mapping[str, Any]):
    """One generator each of ``random``, NumPy and torch, made when it is asked for: torch may not be there."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _GENERATORS[name](self._seed)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_GENERATORS)

    def __len__(self) -> int:
        return len(_GENERATORS)


def _torch_generator(seed: int) -> Any:
    import antifreeze.datasets.tensors as module

    return module.generator(seed)


_GENERATORS: dict[str, Callable[[int], Any]] = {
    "random": random.Random,
    "numpy": np.random.default_rng,
    "torch": _torch_generator,
}


# -- transforms ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A transform, and how it is called."""

    functions: tuple[Callable[..., Any], ...]
    """Applied in turn."""
    is_whole: bool
    """Whether it takes a whole batch."""
    takes_generators: bool = False
    same_in_every_epoch: bool = False
    """Whether its generators are."""
    owner: Any = None
    """The dataset whose method it is."""

    def __call__(self, value: Any, *more: Any) -> Any:
        for function in self.functions:
            value = function(value, *more)
        return value

    def at(self, moment: Moment) -> Callable[[Any, int], Any]:
        """Return a function of a value and its position in the batch: it is called for every row."""
        if self.owner is not None:
            self.owner.row_source.in_epoch(moment.epoch)
        more: tuple[Any, ...] = ()
        if self.takes_generators:
            more = (moment.generators(same_in_every_epoch=self.same_in_every_epoch),)
        return lambda value, position: call(self, value, *more, what="transform", position=position)

    def is_same(self, other: Transform) -> bool:
        """True if both do the same: the same functions, or the same methods of the same dataset."""
        pairs = zip(self.functions, other.functions, strict=False)
        is_alike = self.is_whole == other.is_whole and len(self.functions) == len(other.functions)
        return is_alike and all(_is_same(mine, theirs) for mine, theirs in pairs)


def _is_same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, types.MethodType) and isinstance(theirs, types.MethodType):
        return mine.__func__ is theirs.__func__ and mine.__self__ is theirs.__self__
    return mine is theirs


def make_transform(given: Any, owner: Any = None) -> Transform | None:
    """Return what a user gives as a transform: a function, several in a list, or none; marked with ``batched`` or not.

    ``owner`` is the dataset that it was given to: a method of it may ask in which epoch it is.
    """
    functions = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
    for function in functions:
        if not callable(function):
            kind = type(function).__name__
            hint = "give a function, or a list of functions"
            raise ConfigError(f"transform={given!r} is a {kind}, not a function", hint=hint, argument="transform")
    if not functions:
        return None
    marked = [isinstance(function, Batched) for function in functions]
    if any(marked) and not all(marked):
        raise ConfigError(
            "transform has functions of rows and functions of whole batches",
            hint="mark all of them with antifreeze.batched, or none",
            argument="transform",
        )
    plain = tuple(function.function if isinstance(function, Batched) else function for function in functions)
    is_mine = any(isinstance(f, types.MethodType) and f.__self__ is owner for f in plain)
    return Transform(functions=plain, is_whole=marked[0], owner=owner if is_mine else None)


# -- rows ----------------------------------------------------------------------------------------------------------


class RowBatch(NamedTuple):
    """Rows that the user's functions are called with."""

    delivery: Delivery
    batch: Batch
    tracks: Any
    """Which rows they are, if functions are called with single rows; else None."""
    num_rows: int
    moment: Moment
    skip: tuple[int, ...] = ()
    """Positions of rows that are left out."""


def row_batch(
    delivery: Delivery, block: Any, start: int, stop: int, moment: Moment, skip: tuple[int, ...] = ()
) -> RowBatch:
    """Return some rows of a block for the user's functions."""
    batch, tracks = delivery.batch(block, start, stop), delivery.tracks(block, start, stop)
    return RowBatch(delivery, batch, tracks, stop - start, moment, skip)


class Maker(Protocol):
    """Makes one row of a batch."""

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        """Return a function that makes a row of a batch, by its position, as the user's code does.

        That function raises ``UserError``. It is called for every row, so what is the same for a batch is done before.
        """
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """Rows as they were read."""

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        return partial(given.delivery.row, given.batch)


@dataclass(frozen=True, slots=True)
class Transformed:
    """Rows after a transform."""

    inner: Maker
    transform: Transform

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        inner, transform = self.inner.rows(given), self.transform.at(given.moment)
        return lambda i: transform(inner(i), i)


_at_hand = threading.local()
"""The row that a loader asks ``__getitem__`` of a subclass for: it was read already."""


def row_at_hand(dataset: object, number: int) -> Callable[[], Any] | None:
    """Return what makes a row of a dataset, if ``Asked`` has just asked the dataset for it."""
    owner, wanted, make = getattr(_at_hand, "row", (None, -1, None))
    return make if owner is dataset and wanted == number else None


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows that ``__getitem__`` of the user's class gives. The row that it asks its base class for is at hand."""

    dataset: Any

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        source = self.dataset.row_source
        source.in_epoch(given.moment.epoch)

        def row(i: int) -> Any:
            number = source.number_of(leaf_and_row(given.tracks, i)[1])
            read = partial(given.delivery.row, given.batch, i)
            return call(self._ask, number, read, what=f"dataset[{number}]", position=i)

        return row

    def _ask(self, number: int, make: Callable[[], Any]) -> Any:
        before = getattr(_at_hand, "row", (None, -1, None))
        _at_hand.row = (self.dataset, number, make)
        try:
            return self.dataset[number]
        finally:
            _at_hand.row = before


@dataclass(frozen=True, slots=True)
class OneOf:
    """Rows of datasets that are mixed: each as its own dataset makes it."""

    makers: tuple[Maker, ...]
    first_leaves: tuple[int, ...]

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        rows = [maker.rows(given) for maker in self.makers]
        firsts, tracks = self.first_leaves, given.tracks
        return lambda i: rows[bisect.bisect_right(firsts, leaf_and_row(tracks, i)[0]) - 1](i)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A tuple of a row of each dataset."""

    makers: tuple[Maker, ...]

    def rows(self, given: RowBatch) -> Callable[[int], Any]:
        parts = zip(self.makers, given.delivery.parts, given.batch, given.tracks, strict=True)
        rows = [maker.rows(given._replace(delivery=d, batch=b, tracks=t)) for maker, d, b, t in parts]
        return lambda i: tuple(row(i) for row in rows)


@dataclass(frozen=True, slots=True)
class RowCode:
    """All that user code does with the rows of a dataset: first one by one, then with the whole batch."""

    maker: Maker = Raw()
    whole: Transform | None = None

    @property
    def makes_rows(self) -> bool:
        """Whether anything is done with single rows: then they are read with tracks."""
        return not isinstance(self.maker, Raw)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.whole is None and not self.makes_rows

    def then(self, transform: Transform | None, what: str) -> RowCode:
        """Return this with another transform after it; ``what`` is the dataset that has it."""
        if transform is None:
            return self
        if self.whole is not None:
            raise ConfigError(
                f"{what} and the datasets in it both have a transform, and theirs takes whole batches",
                hint=f"make one function of them, and give it to {what}(..., transform=...)",
                argument="transform",
            )
        if transform.is_whole:
            return RowCode(self.maker, transform)
        return RowCode(Transformed(self.maker, transform))


def mixed_code(codes: Sequence[RowCode], first_leaves: Sequence[int]) -> RowCode:
    """Return what is done with the rows of datasets that are mixed."""
    if all(_does_the_same(codes[0], code) for code in codes[1:]):
        return codes[0]
    _refuse_whole(codes, "CombinedStreamingDataset", "a column can tell it which dataset a row is of")
    return RowCode(OneOf(tuple(code.maker for code in codes), tuple(first_leaves)))


def paired_code(codes: Sequence[RowCode]) -> RowCode:
    """Return what is done with the rows of datasets side by side."""
    _refuse_whole(codes, "ParallelStreamingDataset", "it is called with a tuple of batches")
    if all(code.is_empty for code in codes):
        return RowCode()
    return RowCode(SideBySide(tuple(code.maker for code in codes)))


def _refuse_whole(codes: Sequence[RowCode], what: str, more: str) -> None:
    for number, code in enumerate(codes):
        if code.whole is not None:
            raise ConfigError(
                f"dataset {number} of a {what} has a transform of whole batches, which are made of several datasets",
                hint=f"give it to {what}(..., transform=...); {more}",
                argument="transform",
            )


def _does_the_same(one: RowCode, two: RowCode) -> bool:
    if one.whole is not None and two.whole is not None:
        is_same = one.whole.is_same(two.whole)
    else:
        is_same = one.whole is two.whole
    mine, theirs = one.maker, two.maker
    if isinstance(mine, Transformed) and isinstance(theirs, Transformed):
        is_plain = isinstance(mine.inner, Raw) and isinstance(theirs.inner, Raw)
        return is_same and is_plain and mine.transform.is_same(theirs.transform)
    return is_same and isinstance(mine, Raw) and isinstance(theirs, Raw)
