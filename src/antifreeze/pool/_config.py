"""What a pool is told: the user's settings, and who gives it tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from antifreeze.diagnosis import Finding, StallLimits
from antifreeze.pool._worker_handle import WorkerHandle
from antifreeze.worker import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """What the user has set, for all workers alike."""

    num_workers: int
    dataset: str
    """How messages call it."""
    on_error: str = "raise"
    limits: StallLimits = field(default_factory=StallLimits)
    max_restarts: int = 100
    memory_limit: int | None = None
    waits_for_all: bool = False
    """Whether an epoch ends only after every worker has started: one whose ``worker_init_fn`` fails must be heard."""


class TaskDispatcher(Protocol):
    """Who gives the tasks: one epoch. Called with the pool's lock held, by the trainer's thread or the supervisor."""

    def came_back(self, slot: int, result: Result, worker: WorkerHandle) -> bool:
        """Hear of a result; tell whether somebody will take it."""
        ...

    def started(self, seconds: float) -> None:
        """Hear that a worker is ready, and how long it took."""
        ...

    def lost_while_loading(self, pid: int, why: Finding) -> None:
        """Hear that the process which loads the payload for all workers was lost."""
        ...

    def was_lost(self, worker: WorkerHandle) -> None:
        """Hear that a worker is gone, with all that it had."""
        ...

    def assign(self) -> None:
        """Give tasks to workers that have room."""
        ...

    def looked_s_ago(self) -> float:
        """Tell how long ago somebody looked."""
        ...

    def look(self) -> None:
        """Look whether every worker moves."""
        ...
