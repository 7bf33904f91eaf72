"""One fixed record for each worker, in shared memory: what it is doing, and since when."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from time import monotonic_ns

from antifreeze.transport._memory import Bytes

_RECORD = struct.Struct("<9q")
_NAME_START = 80
_NAME_NBYTES = 200
BOARD_NBYTES = 4096
_NONE = object()
_BY_NAME = -2
_MOST = 1 << 63


class Stage(enum.IntEnum):
    """What a worker is doing."""

    BORN = 0
    """It runs, and has not said anything yet."""
    LOAD = 1
    """It imports and rebuilds what the trainer sent: dataset, functions."""
    INIT = 2
    """It runs ``worker_init_fn``."""
    IDLE = 3
    """It waits for a task."""
    FETCH = 4
    """It asks the dataset for a sample."""
    TRANSFORM = 5
    """It runs the transform."""
    COLLATE = 6
    """It makes a batch of samples."""
    PACK = 7
    """It writes a batch into shared memory."""
    SEND = 8
    """It waits until the trainer takes a result."""
    REPLAY = 9
    """It asks an iterable dataset again for batches that were delivered before its predecessor ended."""

    @property
    def working(self) -> bool:
        """Whether a worker that stays here makes nothing that somebody waits for."""
        return self not in (Stage.IDLE, Stage.SEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a worker's record said at one moment."""

    moves: int
    since_s: float
    stage: Stage
    step: int
    sample: int
    """The index that the dataset was asked for, if it is a number; else -1."""
    position: int
    """Which sample of its batch."""
    slowest_s: float
    """The longest that one sample has taken so far."""
    num_samples: int
    name: str
    """The index, if it is not a number."""


class BoardWriter:
    """The worker's side. A write takes half a microsecond, so each sample has one."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory.data
        self._fields = memory[: _RECORD.size].data.cast("q")
        self._moves = self._num_samples = self._slowest = 0
        self._since = monotonic_ns()
        self._sample: object = _NONE
        self._slowest_of: tuple[object, int] = (_NONE, 0)

    def at(self, stage: Stage, step: int = -1) -> None:
        """Write down what begins now."""
        now = self._end_sample()
        self._sample = _NONE
        fields = self._fields
        # Order: the first and the last number are the same one; a reader that finds them different reads again.
        self._moves = fields[0] = self._moves + 1
        fields[1] = now
        fields[2] = stage
        fields[3] = step
        fields[4] = fields[5] = -1
        fields[6] = self._slowest
        fields[7] = self._num_samples
        fields[8] = self._moves

    def sample(self, stage: Stage, step: int, sample: object, position: int) -> None:
        """Write down which sample begins now."""
        # As ``at``, written out: it is called for every sample, and each call within it would cost a fifth of it.
        now = monotonic_ns()
        fields, before = self._fields, self._sample
        self._moves = moves = self._moves + 1
        fields[0] = moves
        if before is _NONE:  # the first one of its batch; for the others this stands there already
            fields[2] = stage
            fields[3] = step
        else:
            self._num_samples += 1
            if now - self._since > self._slowest_of[1]:
                self._slower(before, now - self._since)
        self._since = fields[1] = now
        fields[4] = sample if type(sample) is int and 0 <= sample < _MOST else self._named(sample)
        fields[5] = position
        fields[8] = moves
        self._sample = sample

    def _end_sample(self) -> int:
        """Count the sample that ends now, if one does; return the time."""
        now = monotonic_ns()
        if self._sample is not _NONE:
            self._num_samples += 1
            if now - self._since > self._slowest_of[1]:
                self._slower(self._sample, now - self._since)
        self._since = now
        return now

    def _slower(self, sample: object, took: int) -> None:
        self._slowest_of = (sample, took)
        self._slowest = max(self._slowest, took)

    def _named(self, sample: object) -> int:
        try:
            text = repr(sample)
        except Exception:  # noqa: BLE001  border: the user's index may do anything
            text = object.__repr__(sample)
        name = text.encode(errors="replace")[:_NAME_NBYTES]
        self._memory[_NAME_START : _NAME_START + len(name) + 1] = name + b"\0"
        return _BY_NAME

    def take_slowest(self) -> tuple[object, float] | None:
        """Return the sample that took longest since the last call, and its seconds."""
        (sample, took), self._slowest_of = self._slowest_of, (_NONE, 0)
        return None if sample is _NONE else (sample, took / 1e9)


def read_board(memory: Bytes) -> Record:
    """Return what a record says now. Never waits: a writer that was killed in mid-write leaves a torn one."""
    for _ in range(3):
        moves, since, stage, step, sample, position, slowest, count, again = _RECORD.unpack_from(memory.data)
        if moves == again:
            break
    name = ""
    if sample == _BY_NAME:
        raw = memory[_NAME_START : _NAME_START + _NAME_NBYTES].tobytes()
        name = raw.split(b"\0")[0].decode(errors="replace")
    return Record(
        moves=moves,
        since_s=since / 1e9,
        stage=Stage(stage) if 0 <= stage < len(Stage) else Stage.BORN,
        step=step,
        sample=sample,
        position=position,
        slowest_s=slowest / 1e9,
        num_samples=count,
        name=name,
    )
