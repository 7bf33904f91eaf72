"""One fixed record for each worker, in shared memory: what it is doing, and since when."""

from __future__ import annotations

import enum
import struct
import time
from dataclasses import dataclass

from antifreeze.transport._memory import Bytes

_RECORD = struct.Struct("<9q")
_NAME_START = 80
_NAME_NBYTES = 200
BOARD_NBYTES = 4096


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
    """The worker's side. A write takes less than a microsecond, so each sample has one."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory.data
        self._fields = memory[: _RECORD.size].data.cast("q")
        self._moves = self._num_samples = self._slowest = 0
        self._since = time.monotonic_ns()
        self._sampling = False
        self._sample: object = None
        self._slowest_of: tuple[object, int] | None = None

    def at(self, stage: Stage, step: int = -1) -> None:
        """Write down what begins now."""
        self._write(stage, step, -1, -1)
        self._sampling = False

    def sample(self, stage: Stage, step: int, sample: object, position: int) -> None:
        """Write down which sample begins now."""
        if type(sample) is int and sample >= 0:
            self._write(stage, step, sample, position)
        else:
            name = repr(sample).encode(errors="replace")[:_NAME_NBYTES]
            self._memory[_NAME_START : _NAME_START + len(name) + 1] = name + b"\0"
            self._write(stage, step, -2, position)
        self._sampling, self._sample = True, sample

    def _write(self, stage: int, step: int, sample: int, position: int) -> None:
        now = time.monotonic_ns()
        if self._sampling:
            took = now - self._since
            self._num_samples += 1
            if took > self._slowest:
                self._slowest = took
            if self._slowest_of is None or took > self._slowest_of[1]:
                self._slowest_of = (self._sample, took)
        self._since = now
        self._moves += 1
        fields = self._fields
        # Order: the first and the last number are the same one; a reader that finds them different reads again.
        fields[0] = self._moves
        fields[1] = now
        fields[2] = stage
        fields[3] = step
        fields[4] = sample
        fields[5] = position
        fields[6] = self._slowest
        fields[7] = self._num_samples
        fields[8] = self._moves

    def take_slowest(self) -> tuple[object, float] | None:
        """Return the sample that took longest since the last call, and its seconds."""
        slowest, self._slowest_of = self._slowest_of, None
        return None if slowest is None else (slowest[0], slowest[1] / 1e9)


def read_board(memory: Bytes) -> Record:
    """Return what a record says now. Never waits: a writer that was killed in mid-write leaves a torn one."""
    for _ in range(3):
        moves, since, stage, step, sample, position, slowest, count, again = _RECORD.unpack_from(memory.data)
        if moves == again:
            break
    name = ""
    if sample == -2:
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
