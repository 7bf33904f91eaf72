"""``torch.utils.data.get_worker_info()`` in our worker processes, and whether user code has used it.

An iterable dataset that reads its worker's ID splits itself among the workers; one that does not would yield every
sample once per worker. So reads of ``id`` and ``num_workers`` are recorded.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field
from typing import Any

from antifreeze.payload import when_imported
from antifreeze.worker._seeding import seed_late

_TORCH = "torch.utils.data._utils.worker"
_FACTS = ("id", "num_workers", "seed", "dataset")
_SHARDING_FACTS = frozenset({"id", "num_workers"})


@dataclass(slots=True)
class _State:
    asked: bool = False
    waits: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    """Attributes of torch's object; empty in the trainer's process."""
    info: Any = None
    """Torch's object, once torch is loaded."""


_state = _State()


def install(id: int, num_workers: int, seed: int, dataset: Any) -> None:  # noqa: A002  torch's name for it
    """Make this process a worker for torch, now or when it is imported."""
    _state.facts = dict(zip(_FACTS, (id, num_workers, seed, dataset), strict=True))
    if _TORCH in sys.modules:
        _set_in_torch()
    elif not _state.waits:
        _state.waits = True
        when_imported(_TORCH, _on_torch_imported)


def update(*, dataset: Any, seed: int) -> None:
    """Update this worker's information, also in an object that user code has kept."""
    if _state.facts:
        _state.facts |= {"dataset": dataset, "seed": seed}
    if _state.info is not None:
        object.__setattr__(_state.info, "dataset", dataset)
        object.__setattr__(_state.info, "seed", seed)


def asked() -> bool:
    """Return True if ``id`` or ``num_workers`` was read since ``reset_asked``."""
    return _state.asked


def reset_asked() -> None:
    """Reset the record of reads."""
    _state.asked = False


def _on_torch_imported() -> None:
    _state.waits = False
    _set_in_torch()
    # User code that imports torch during a task must see the same random numbers as if it had been loaded before.
    seed_late()


def _set_in_torch() -> None:
    """Set an instance of a subclass of torch's class that looks like torch's in every other way."""
    worker: Any = sys.modules[_TORCH]
    base = worker.WorkerInfo
    alike = {name: getattr(base, name) for name in ("__doc__", "__module__", "__qualname__")}
    kind: Any = type(base.__name__, (_Recording, base), {"__slots__": (), **alike})
    worker._worker_info = _state.info = kind(**_state.facts)


class _Recording:
    """Mixin that records reads of the attributes used for sharding."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _SHARDING_FACTS:
            _state.asked = True
        return super().__getattribute__(name)

    # Printing it is not sharding by it.
    def __repr__(self) -> str:
        before = _state.asked
        text = super().__repr__()
        _state.asked = before
        return text

    # Its class cannot be found by name; elsewhere, torch's class is enough.
    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: object.__getattribute__(self, name) for name in _FACTS}
        return functools.partial(type(self).__mro__[2], **facts), ()
