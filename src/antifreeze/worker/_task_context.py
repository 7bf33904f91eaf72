"""What a worker offers to its program: a heartbeat, and a timer for each stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from antifreeze.ipc import HeartbeatWriter, Slowest, Stage, positions_of, repr_of
from antifreeze.worker._seeding import seed_now
from antifreeze.worker._user_errors import UserError, text_of
from antifreeze.worker._wire import SkippedSample

_NAMES = {stage: stage.name.lower() for stage in Stage}


class TaskContext:
    """Heartbeat, timers and skipped samples of the current task. One context serves all tasks of a worker."""

    def __init__(
        self,
        board: HeartbeatWriter | None,
        *,
        slot: int,
        num_workers: int,
        on_error: str,
        seed: Callable[[int, int, int], None] = seed_now,
        times: dict[str, float] | None = None,
    ) -> None:
        self.slot, self.num_workers, self.on_error = slot, num_workers, on_error
        self.seed = seed
        """Seeds the generators for user code. Without workers, that is done around the whole batch."""
        self._board = board
        self.is_watched = board is not None
        """Whether there is a heartbeat: without workers, there is none."""
        self._times = times
        """Accumulates seconds over all tasks, if they are not counted per task."""
        self.clear(-1)

    def clear(self, step: int) -> None:
        """Start another task."""
        self.step = step
        self.skipped: list[SkippedSample] = []
        self.times: dict[str, float] = {} if self._times is None else self._times
        self.num_samples = 0
        self._position = -1

    def at(self, stage: Stage) -> None:
        """Record the stage that begins now in the heartbeat."""
        if self._board is not None:
            self._board.at(stage, self.step)

    def sample(self, stage: Stage, sample: object, position: int) -> None:
        """Record the sample that begins now in the heartbeat."""
        if self._board is not None:
            self._board.sample(stage, self.step, sample, position)

    def samples(self, stage: Stage, indices: Iterable[Any], skip: Container[int] = ()) -> Iterator[Any]:
        """Yield the indices of a batch except at the positions ``skip``, and record each in the heartbeat."""
        if self._board is not None:
            return self._board.samples(stage, self.step, indices, skip)
        return self._walk(indices, skip)

    def _walk(self, indices: Iterable[Any], skip: Container[int]) -> Iterator[Any]:
        for self._position, sample in positions_of(indices, skip):
            yield sample

    @property
    def position(self) -> int:
        """Position of the sample that ``samples`` yielded last."""
        return self._position if self._board is None else self._board.position

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Measure the seconds of a stage."""
        began_s = self.begin(stage)
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began_s)

    def begin(self, stage: Stage) -> float:
        """Record the start of a stage; return the time, for ``add``."""
        self.at(stage)
        return time.perf_counter()

    def add(self, stage: Stage, seconds: float) -> None:
        """Add seconds to a stage."""
        name = _NAMES[stage]
        self.times[name] = self.times.get(name, 0.0) + seconds

    def take_slowest(self) -> Slowest | None:
        """Return the slowest sample so far if it is in this task, in a form that can be sent."""
        found = self._board.take_slowest() if self._board is not None else None
        return None if found is None else found._replace(sample=repr_of(found.sample))

    def failed(self, error: UserError) -> None:
        """Skip the sample if the user allows it, otherwise raise."""
        if self.on_error != "skip" or not error.can_skip:
            raise error
        reason = f"{error.what} raised {type(error.error).__name__}: {text_of(error.error)}"
        self.skipped.append(SkippedSample(error.position, error.sample, reason))
