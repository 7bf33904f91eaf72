"""What a crew is told: the user's settings, and who gives it tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from antifreeze.child import Result
from antifreeze.crew._member import Member
from antifreeze.supervise import Finding, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the user has set, for all workers alike."""

    num_workers: int
    dataset: str
    """How messages call it."""
    on_error: str = "raise"
    limits: Limits = field(default_factory=Limits)
    max_restarts: int = 100
    memory_limit: int | None = None
    waits_for_all: bool = False
    """Whether an epoch ends only after every worker has started: one whose ``worker_init_fn`` fails must be heard."""


class Flow(Protocol):
    """Who gives the tasks: one epoch. Called with the crew's lock held, by the trainer's thread or by the keeper."""

    def came_back(self, slot: int, result: Result, member: Member) -> bool:
        """Hear of a result; tell whether somebody will take it."""
        ...

    def started(self, seconds: float) -> None:
        """Hear that a worker is ready, and how long it took."""
        ...

    def lost_while_loading(self, pid: int, why: Finding) -> None:
        """Hear that the process which loads the payload for all workers was lost."""
        ...

    def was_lost(self, member: Member) -> None:
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
