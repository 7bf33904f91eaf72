"""One fixed record for each worker, in shared memory: what it is doing, and since when."""

from __future__ import annotations

import enum
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from antifreeze.transport._memory import Bytes

_RECORD = struct.Struct("@qd4qd2q")
_NAME_START = 80
_NAME_NBYTES = 200
BOARD_NBYTES = 4096
_NONE = object()
_BY_NAME = -2
_MOST = 1 << 63
_MOST_S = 1e12


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

    since_s: float
    """Since when; also tells two records of one worker apart."""
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
    """The worker's side. Each sample is written down, so that must take a fraction of a microsecond."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory.data
        self._fields = memory[: _RECORD.size].data.cast("q")
        self._times = memory[: _RECORD.size].data.cast("d")
        self._notes = self._num_samples = 0
        self._slowest = 0.0
        self._sample: object = _NONE
        self._first = 0
        self._slowest_of: tuple[object, float] = (_NONE, 0.0)

    def at(self, stage: Stage, step: int = -1) -> None:
        """Write down what begins now."""
        self._write(self._end(), stage, step, -1, -1)

    def sample(self, stage: Stage, step: int, sample: object, position: int) -> None:
        """Write down which sample begins now."""
        now_s = self._end()
        self._sample, self._first = sample, position
        self._write(now_s, stage, step, self._number(sample), position)

    def samples(
        self, stage: Stage, step: int, indices: Iterable[Any], skip: Container[int]
    ) -> Iterator[tuple[int, Any]]:
        """Go through the samples of a batch, but for those at these places, and write down each one as it begins."""
        fields, times = self._fields, self._times
        since_s, worst_s = 0.0, self._slowest_of[1]
        for position, sample in enumerate(indices):
            if skip and position in skip:
                continue
            if not since_s:
                self.sample(stage, step, sample, position)
                since_s = times[1]
            else:
                # As ``sample``, written out: a call would cost as much as all of this.
                now_s = monotonic()
                if now_s - since_s > worst_s:
                    worst_s = now_s - since_s
                    self._slower(worst_s)
                # Order: a reader between two of these lines finds a sample younger than it is, never older.
                times[1] = since_s = now_s
                fields[4] = sample if type(sample) is int and 0 <= sample < _MOST else self._number(sample)
                fields[5] = position
                self._sample = sample
            yield position, sample

    def _write(self, now_s: float, stage: Stage, step: int, sample: int, position: int) -> None:
        fields = self._fields
        # Order: the first and the last number are the same one; a reader that finds them different reads again. Not by
        # pack_into: that makes all of it zero before it writes.
        self._notes = fields[0] = number = self._notes + 1
        self._times[1] = now_s
        fields[2], fields[3], fields[4], fields[5] = stage, step, sample, position
        self._times[6] = self._slowest
        fields[7] = self._num_samples
        fields[8] = number

    def _end(self) -> float:
        """Count the samples that have ended now, if any; return the time."""
        now_s = monotonic()
        if self._sample is not _NONE:
            self._num_samples += 1 + self._fields[5] - self._first
            if now_s - self._times[1] > self._slowest_of[1]:
                self._slower(now_s - self._times[1])
            self._sample = _NONE
        return now_s

    def _slower(self, took_s: float) -> None:
        self._slowest_of = (self._sample, took_s)
        self._slowest = max(self._slowest, took_s)

    def _number(self, sample: object) -> int:
        """Return the sample, if it is a number; else write its name beside."""
        return sample if type(sample) is int and 0 <= sample < _MOST else self._named(sample)

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
        (sample, took_s), self._slowest_of = self._slowest_of, (_NONE, 0.0)
        return None if sample is _NONE else (sample, took_s)


def read_board(memory: Bytes) -> Record:
    """Return what a record says now. Never waits: a writer that was killed in mid-write leaves a torn one."""
    for _ in range(3):
        number, since_s, stage, step, sample, position, slowest_s, count, again = _RECORD.unpack_from(memory.data)
        if number == again:
            break
    name = ""
    if sample == _BY_NAME:
        raw = memory[_NAME_START : _NAME_START + _NAME_NBYTES].tobytes()
        name = raw.split(b"\0")[0].decode(errors="replace")
    return Record(
        since_s=_seconds(since_s),
        stage=Stage(stage) if 0 <= stage < len(Stage) else Stage.BORN,
        step=step,
        sample=sample,
        position=position,
        slowest_s=_seconds(slowest_s),
        num_samples=count,
        name=name,
    )


def _seconds(value: float) -> float:
    """Return a time as it was written; user code that writes where it should not leaves any bits."""
    return value if 0 <= value < _MOST_S else 0.0
