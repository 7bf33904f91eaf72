"""What a ``DataLoader`` is made of: its settings, its sampler and those in it, and states of the user's objects.

Frameworks set attributes of a loader at any time, so each is read when it is needed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.utils.data as tud

from antifreeze.core import AntifreezeError, StateMismatch
from antifreeze.worker import has_state

_DRAW_NOTHING = (list, tuple, range, tud.SequentialSampler, tud.BatchSampler, tud.DistributedSampler)
"""Neither from the trainer's generators nor from one that they are given; torch's distributed sampler makes its own."""
_DRAW = (tud.RandomSampler, tud.SubsetRandomSampler, tud.WeightedRandomSampler)
"""From their ``generator``, or else from torch's global one."""


class TorchLoader(Protocol):
    """A loader with the arguments of torch's, each as the attribute of its name."""

    dataset: Any
    batch_size: int | None
    num_workers: int
    pin_memory: bool
    drop_last: bool
    sampler: Any
    batch_sampler: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    in_order: bool

    def renew_workers(self) -> None:
        """Let workers go that stay from epoch to epoch: the dataset is another one than they know."""
        ...

    def __len__(self) -> int: ...


def is_iterable(loader: TorchLoader) -> bool:
    """True if the dataset is iterable, not map-style."""
    return isinstance(loader.dataset, tud.IterableDataset)


def index_sampler(loader: TorchLoader) -> Any:
    """Return what gives the indices of a step, as torch's loader chooses it."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def is_known(sampler: Any) -> bool:
    """True if it is known what this sampler draws, not counting the one in it: user code may draw from anywhere."""
    return type(sampler) in _DRAW_NOTHING or type(sampler) in _DRAW


def draws_globally(sampler: Any) -> bool:
    """True if this sampler, not counting the one in it, may draw from torch's global generator."""
    return not is_known(sampler) or (type(sampler) in _DRAW and sampler.generator is None)


def draws_nothing(sampler: Any) -> bool:
    """True if a sampler, with those in it, draws from no generator that others see."""
    return all(type(s) in _DRAW_NOTHING for s in chain_of(sampler))


def free_steps(sampler: Any) -> float:
    """Return how many steps can be taken from a sampler early without anybody noticing, once it has given its first.

    With its first index, a sampler of torch draws all that it ever draws from a generator that others see. The
    exception is a ``RandomSampler`` with a generator: it draws once more when it is asked in vain, and, with
    replacement or for more samples than there are, in between. Samplers that are user code may draw at any step.
    """
    chain = chain_of(sampler)
    if not all(is_known(s) for s in chain):
        return 0
    late = [s for s in chain if type(s) is tud.RandomSampler and s.generator is not None]
    if not late:
        return math.inf
    length = length_of(sampler)
    is_once = all(not s.replacement and s.num_samples == len(s.data_source) for s in late)
    return length - 1 if is_once and length is not None else 0


def chain_of(sampler: Any) -> list[Any]:
    """Return a sampler, the one in it, and so on."""
    found = [sampler]
    while (inner := _inner(found[-1])) is not None and all(inner is not s for s in found):
        found.append(inner)
    return found


def _inner(sampler: Any) -> Any:
    # Accelerate's samplers hold a batch sampler.
    inner = getattr(sampler, "sampler", None)
    return getattr(sampler, "batch_sampler", None) if inner is None else inner


def names_of(sampler: Any) -> str:
    """Return what kind of sampler it is."""
    return " of ".join(type(s).__name__ for s in chain_of(sampler))


def generators_of(samplers: list[Any]) -> list[torch.Generator]:
    """Return the generators that samplers hold."""
    found = [getattr(s, "generator", None) for s in samplers]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def length_of(sampler: Any) -> int | None:
    """Return how many steps a sampler says it has."""
    with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
        return len(sampler)
    return None


def owner_of(sampler: Any) -> Any:
    """Return the sampler, or the one in it, that can save and load its position; None if there is none."""
    return next((s for s in chain_of(sampler) if has_state(s)), None)


@contextlib.contextmanager
def loading(owner: str) -> Iterator[None]:
    """Raise StateMismatch if ``load_state_dict()`` of a user's object fails in this block; its error is the cause."""
    try:
        yield
    except AntifreezeError:
        raise
    except Exception as error:
        raise StateMismatch(
            f"load_state_dict() of {owner} refused its part of the state: {type(error).__name__}: {error!s:.300}",
            hint="give load_state_dict() what state_dict() of the same loader returned; the cause is above",
        ) from error
