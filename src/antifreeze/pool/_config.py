"""The user's settings for a pool, and the interface through which it gets tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from antifreeze.diagnosis import Finding, StallLimits
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.worker import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """User settings that apply to all workers."""

    num_workers: int
    dataset: str
    """Name of the dataset in messages."""
    on_error: str = "raise"
    limits: StallLimits = field(default_factory=StallLimits)
    max_restarts: int = 100
    memory_limit: int | None = None
    waits_for_all: bool = False
    """Whether an epoch ends only after every worker has started, so that a failing ``worker_init_fn`` is reported."""


class TaskDispatcher(Protocol):
    """Assigns the tasks of one epoch. Called with the pool's lock held, by the trainer's thread or the supervisor."""

    def on_result(self, slot: int, result: Result, worker: WorkerHandle) -> bool:
        """Record a result; return True if its batch will be delivered."""
        ...

    def started(self, seconds: float) -> None:
        """Record that a worker is ready, and its startup time."""
        ...

    def on_loading_process_lost(self, pid: int, why: Finding) -> None:
        """Handle the loss of the process that loads the payload for all workers."""
        ...

    def on_worker_lost(self, worker: WorkerHandle) -> None:
        """Handle the loss of a worker and of the tasks it held."""
        ...

    def assign(self) -> None:
        """Send tasks to workers below their quota."""
        ...

    def seconds_since_check(self) -> float:
        """Return the time since the last check."""
        ...

    def check(self) -> None:
        """Detect stalled, leaking and lost workers."""
        ...
