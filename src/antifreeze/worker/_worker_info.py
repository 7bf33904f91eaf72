"""What ``torch.utils.data.get_worker_info()`` says in our worker processes, and whether user code has asked.

An iterable dataset that asks which worker it is in splits itself among the workers; one that does not would give every
sample once per worker. So it is noted whether ``id`` or ``num_workers`` were read.
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
_TELLING = frozenset({"id", "num_workers"})
_SAME = object()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker may know about itself: torch's class of this name, where torch is not loaded."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(slots=True)
class _State:
    asked: bool = False
    waits: bool = False
    infos: list[Any] = field(default_factory=list)
    """The one that was there from the beginning, and torch's once it is loaded."""


_state = _State()


def install(id: int, num_workers: int, seed: int, dataset: Any) -> None:  # noqa: A002  torch's name for it
    """Make this process a worker: for ``get_worker_info`` of this module, and of torch now or when it is imported."""
    _state.infos = [_noticing(WorkerInfo, dict(zip(_FACTS, (id, num_workers, seed, dataset), strict=True)))]
    if _TORCH in sys.modules:
        _tell_torch()
    elif not _state.waits:
        _state.waits = True
        when_imported(_TORCH, _torch_is_there)


def update(*, dataset: Any = _SAME, seed: Any = _SAME) -> None:
    """Change what this worker's information holds, also in objects that user code has kept."""
    for name, value in (("dataset", dataset), ("seed", seed)):
        for info in _state.infos if value is not _SAME else ():
            object.__setattr__(info, name, value)


def asked() -> bool:
    """Say whether ``id`` or ``num_workers`` were read since ``reset_asked``."""
    return _state.asked


def reset_asked() -> None:
    """Forget that anything was read."""
    _state.asked = False


def get_worker_info() -> Any:
    """Return what this worker may know about itself, as torch's function does; None in the trainer's own process."""
    return _state.infos[-1] if _state.infos else None


def _torch_is_there() -> None:
    _state.waits = False
    _tell_torch()
    # User code that imports torch in the middle of a task must see the same numbers as where it was loaded before.
    seed_late()


def _tell_torch() -> None:
    worker: Any = sys.modules[_TORCH]
    facts = {name: object.__getattribute__(_state.infos[0], name) for name in _FACTS}
    _state.infos[1:] = [_noticing(worker.WorkerInfo, facts)]
    worker._worker_info = _state.infos[1]


class _Noticing:
    """Goes before a class to note what is read of its objects."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _TELLING:
            _state.asked = True
        return super().__getattribute__(name)

    # Who prints it does not split by it.
    def __repr__(self) -> str:
        before = _state.asked
        text = super().__repr__()
        _state.asked = before
        return text

    # Its class is made below and has no name that pickle could find; elsewhere, the plain class will do.
    def __reduce__(self) -> tuple[Any, ...]:
        facts = {name: object.__getattribute__(self, name) for name in _FACTS}
        return functools.partial(type(self).__mro__[2], **facts), ()


def _noticing(base: Any, facts: dict[str, Any]) -> Any:
    """Return an instance of a subclass of ``base`` that looks like ``base`` in every other way."""
    alike = {name: getattr(base, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(base.__name__, (_Noticing, base), {"__slots__": (), **alike})(**facts)
