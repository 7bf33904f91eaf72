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
_SAME = object()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Substitute for torch's class of this name, where torch is not loaded."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(slots=True)
class _State:
    asked: bool = False
    waits: bool = False
    infos: list[Any] = field(default_factory=list)
    """Our own instance, and torch's once it is loaded."""


_state = _State()


def install(id: int, num_workers: int, seed: int, dataset: Any) -> None:  # noqa: A002  torch's name for it
    """Make this process a worker for ``get_worker_info`` of this module and of torch, now or when it is imported."""
    _state.infos = [_recording(WorkerInfo, dict(zip(_FACTS, (id, num_workers, seed, dataset), strict=True)))]
    if _TORCH in sys.modules:
        _set_in_torch()
    elif not _state.waits:
        _state.waits = True
        when_imported(_TORCH, _on_torch_imported)


def update(*, dataset: Any = _SAME, seed: Any = _SAME) -> None:
    """Update this worker's information, also in objects that user code has kept."""
    for name, value in (("dataset", dataset), ("seed", seed)):
        for info in _state.infos if value is not _SAME else ():
            object.__setattr__(info, name, value)


def asked() -> bool:
    """Return True if ``id`` or ``num_workers`` was read since ``reset_asked``."""
    return _state.asked


def reset_asked() -> None:
    """Reset the record of reads."""
    _state.asked = False


def get_worker_info() -> Any:
    """Return the worker's information, as torch's function does; None in the trainer's process."""
    return _state.infos[-1] if _state.infos else None


def _on_torch_imported() -> None:
    _state.waits = False
    _set_in_torch()
    # User code that imports torch during a task must see the same random numbers as if it had been loaded before.
    seed_late()


def _set_in_torch() -> None:
    worker: Any = sys.modules[_TORCH]
    facts = {name: object.__getattribute__(_state.infos[0], name) for name in _FACTS}
    _state.infos[1:] = [_recording(worker.WorkerInfo, facts)]
    worker._worker_info = _state.infos[1]


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

    # Its class is created below and cannot be found by name; elsewhere, the plain class is enough.
    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: object.__getattribute__(self, name) for name in _FACTS}
        return functools.partial(type(self).__mro__[2], **facts), ()


def _recording(base: Any, facts: dict[str, Any]) -> Any:
    """Return an instance of a subclass of ``base`` that looks like ``base`` in every other way."""
    alike = {name: getattr(base, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(base.__name__, (_Recording, base), {"__slots__": (), **alike})(**facts)
