"""What a worker offers to its program: a heartbeat, a timer for each stage, and errors that can always be sent."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import cloudpickle

from antifreeze.core import clean_block, one_line
from antifreeze.ipc import HeartbeatWriter, Slowest, Stage, positions_of, repr_of
from antifreeze.worker._seeding import seed_now
from antifreeze.worker._wire import Failure, FailureReason, SkippedSample

_LONG_TEXT = 2_000
_LONG_TRACEBACK = 40_000
_LARGE_ERROR_NBYTES = 1 << 20
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


# -- errors of user code ----------------------------------------------------------------------------------------------


class UserError(Exception):
    """Carries what user code raised, and at which sample, up to the loop that reports it."""

    def __init__(
        self,
        what: str,
        error: BaseException,
        *,
        sample: str = "",
        position: int = -1,
        explanation: str = "",
        can_skip: bool = False,
        reason: FailureReason = FailureReason.RAISED,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.error = error
        self.text = text_of(error)
        self.sample = sample
        self.position = position
        self.explanation = explanation
        self.can_skip = can_skip
        self.reason = reason


def failure_of(caught: UserError) -> Failure:
    """Return the facts of an error, and the error itself if it can be pickled and rebuilt."""
    error = caught.error
    return Failure(
        what=caught.what,
        sample=caught.sample,
        position=caught.position,
        kind=type(error).__qualname__.split(".<locals>.")[-1],
        message=text_of(error),
        traceback=_traceback(error),
        explanation=caught.explanation,
        module=getattr(error, "name", None) or "" if isinstance(error, ModuleNotFoundError) else "",
        error=_portable(error),
        error_class=_portable_class(type(error)),
        can_skip=caught.can_skip,
        reason=caught.reason,
    )


def text_of(error: BaseException) -> str:
    """Return an error's message, even if it fails to print itself, or holds half of a dataset."""
    try:
        return one_line(str(error), _LONG_TEXT)
    except Exception:  # noqa: BLE001  border: the user's exception may do anything
        return "(its message cannot be printed)"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    # The first frames are ours: the loop that called the user's code.
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    try:
        return clean_block("".join(traceback.format_exception(type(error), error, trace)), _LONG_TRACEBACK)
    except Exception:  # noqa: BLE001  border: it calls the user's __str__
        return "".join(traceback.format_tb(trace)) + type(error).__qualname__


def _is_ours(frame: FrameType) -> bool:
    """True for a frame of this package; a user's module may well have our name in its own."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] == "antifreeze"


def _portable(error: BaseException) -> bytes | None:
    """Return the pickled error if it can be rebuilt: many cannot, because their constructors want other arguments."""
    try:
        error.__traceback__ = error.__cause__ = error.__context__ = None  # which hold its frames
        blob = cloudpickle.dumps(error)
        is_fit = len(blob) <= _LARGE_ERROR_NBYTES and type(pickle.loads(blob)) is type(error)  # noqa: S301  our own
    except Exception:  # noqa: BLE001  border: it calls the user's constructors and reducers
        return None
    return blob if is_fit else None


def _portable_class(kind: type) -> bytes | None:
    try:
        return bytes(cloudpickle.dumps(kind))
    except Exception:  # noqa: BLE001  border: a class may refer to anything
        return None
