"""The user's transforms: how they are given, and how they are called."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antifreeze.core import ConfigError, step_seed


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
    import torch

    return torch.Generator().manual_seed(seed)


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
        if self.is_whole != other.is_whole or len(self.functions) != len(other.functions):
            return False
        # Not by ==: an object of the user's may call itself equal to one that does something else. Methods are made
        # whenever they are looked up, and equal if their function and their object are the same.
        pairs = zip(self.functions, other.functions, strict=True)
        return all(a is b or (type(a) is type(b) is types.MethodType and a == b) for a, b in pairs)


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
