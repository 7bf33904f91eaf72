"""A fixed-size record per worker in shared memory: what it is doing, and since when."""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NamedTuple

from antifreeze.ipc._mapped_memory import Bytes

_RECORD = struct.Struct("@qd4qd2q")
_NAME_START = 80
_NAME_NBYTES = 200
HEARTBEAT_NBYTES = 4096
_BY_NAME, _BY_POSITION, _FROM = -2, -3, -4
"""Codes for a sample that is not a number: use its name, use its position, or add its position to a number."""
_MAX_SAMPLE = 1 << 63
_MAX_S = 1e12
_BRIEF_S, _MANY = 2e-5, 8
"""Samples shorter than this, in batches of at least this many, are not timed one by one: it would double their cost."""


class Stage(enum.IntEnum):
    """What a worker is doing."""

    STARTED = 0
    """It runs, and has not recorded anything yet."""
    LOAD = 1
    """It loads the payload: dataset and functions."""
    INIT = 2
    """It runs ``worker_init_fn``."""
    IDLE = 3
    """It waits for a task."""
    FETCH = 4
    """It reads a sample from the dataset."""
    TRANSFORM = 5
    """It runs the transform."""
    COLLATE = 6
    """It collates samples into a batch."""
    PACK = 7
    """It writes a batch into shared memory."""
    SEND = 8
    """It waits until the trainer receives a result."""
    REPLAY = 9
    """It replays batches of an iterable dataset that were delivered by its predecessor."""

    @property
    def working(self) -> bool:
        """True if a worker that stays in this stage holds up a batch."""
        return self not in (Stage.IDLE, Stage.SEND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A snapshot of a worker's record."""

    since_s: float
    """Start time; also distinguishes two records of one worker."""
    stage: Stage
    step: int
    sample: int
    """The index of the sample, if it is known here and a number; otherwise below 0."""
    position: int
    """Position of the sample in its batch."""
    slowest_s: float
    """The longest time of a sample so far."""
    num_samples: int
    name: str
    """The index, if it is not a number."""


class Slowest(NamedTuple):
    """The slowest sample so far."""

    position: int
    sample: Any
    seconds: float
    others: int
    """Number of following samples that were not timed: it may have been one of these."""


class HeartbeatWriter:
    """The worker's side. Each sample is recorded, which must take a fraction of a microsecond."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory.data
        self._fields = memory[: _RECORD.size].data.cast("q")
        self._times = memory[: _RECORD.size].data.cast("d")
        self._notes = self._num_samples = 0
        self._slowest: Slowest | None = None
        self._slowest_s = 0.0
        self._first, self._begun_s = -1, 0.0
        self._sample: object = None
        self._indices: Iterable[Any] | None = None
        """Indices of the samples being iterated; None for a single sample."""
        self._is_brief = False

    @property
    def position(self) -> int:
        """Position of the current sample."""
        return self._fields[5]

    def at(self, stage: Stage, step: int = -1) -> None:
        """Record the stage that begins now."""
        self._write(self._end(), stage, step, -1, -1)

    def sample(self, stage: Stage, step: int, sample: object, position: int) -> None:
        """Record the sample that begins now."""
        now_s = self._end()
        self._sample, self._indices, self._first, self._begun_s = sample, None, position, now_s
        if type(sample) is int and 0 <= sample < _MAX_SAMPLE:
            number = sample
        else:
            name = repr_of(sample).encode(errors="replace")[:_NAME_NBYTES]
            self._memory[_NAME_START : _NAME_START + len(name) + 1] = name + b"\0"
            number = _BY_NAME
        self._write(now_s, stage, step, number, position)

    def samples(self, stage: Stage, step: int, indices: Iterable[Any], skip: Container[int] = ()) -> Iterator[Any]:
        """Yield the samples of a batch, except at the positions ``skip``, and record each as it begins.

        After the first, only the position is recorded, and the time unless samples are very short: the reader knows the
        batch, and sees whether the position changes.
        """
        fields, times, positions = self._fields, self._times, positions_of(indices, skip)
        for position, sample in positions:
            self.sample(stage, step, sample, position)
            yield sample
            break
        else:
            return
        self._indices = indices
        fields[4] = _FROM - indices.start if type(indices) is range else _BY_POSITION
        if self._is_brief:
            for position, sample in positions:
                fields[5] = position
                yield sample
            return
        since_s, worst_s = times[1], self._slowest_s
        for position, sample in positions:
            now_s = monotonic()
            if now_s - since_s > worst_s:
                worst_s = now_s - since_s
                self._slower(fields[5], worst_s)
            # Order: a reader between these two lines sees a sample as younger than it is, never older.
            times[1] = since_s = now_s
            fields[5] = position
            yield sample

    def _write(self, now_s: float, stage: Stage, step: int, sample: int, position: int) -> None:
        fields = self._fields
        # Order: the first and the last number are equal; a reader that finds them different reads again. Not pack_into:
        # it zeroes the whole record before it writes.
        self._notes = fields[0] = number = self._notes + 1
        self._times[1] = now_s
        fields[2], fields[3], fields[4], fields[5] = stage, step, sample, position
        self._times[6] = self._slowest_s
        fields[7] = self._num_samples
        fields[8] = number

    def _end(self) -> float:
        """Count the samples that have just finished, if any; return the time."""
        now_s = monotonic()
        if self._first >= 0:
            last, took_s = self._fields[5], now_s - self._times[1]
            count = 1 + last - self._first
            self._num_samples += count
            mean_s = (now_s - self._begun_s) / count
            if not self._is_brief or count == 1:
                self._slower(last, took_s)
            elif mean_s >= _BRIEF_S:
                self._slower(self._first, took_s, others=count - 1)
            self._is_brief = count >= _MANY and mean_s < _BRIEF_S
            self._first = -1
        return now_s

    def _slower(self, position: int, took_s: float, others: int = 0) -> None:
        if took_s > self._slowest_s:
            sample = self._sample
            if self._indices is not None:
                sample = next(itertools.islice(self._indices, max(0, position), None), position)
            self._slowest, self._slowest_s = Slowest(position, sample, took_s, others), took_s

    def take_slowest(self) -> Slowest | None:
        """Return the slowest sample of all, if it was recorded since the last call."""
        found, self._slowest = self._slowest, None
        return found


def repr_of(sample: object) -> str:
    """Return the repr of a user's index."""
    try:
        return repr(sample)
    except Exception:  # noqa: BLE001  border: it may do anything
        return object.__repr__(sample)


def positions_of(indices: Iterable[Any], skip: Container[int]) -> Iterator[tuple[int, Any]]:
    """Return the samples of a batch with their positions, except at the positions ``skip``."""
    pairs = enumerate(indices)
    return (pair for pair in pairs if pair[0] not in skip) if skip else pairs


class HeartbeatReader:
    """The trainer's side. Remembers when it first saw a position: not every sample is recorded with its time."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self._seen = (0.0, -1, 0.0)

    def read(self) -> Heartbeat:
        """Return the current record. Thread-safe."""
        record = read_heartbeat(self._memory)
        written_s, position, since_s = self._seen
        if record.since_s != written_s:
            since_s = record.since_s
        elif record.position != position:
            since_s = monotonic()
        # Order: in one assignment, or another thread could combine the time of one position with another.
        self._seen = (record.since_s, record.position, since_s)
        return replace(record, since_s=since_s)


def read_heartbeat(memory: Bytes) -> Heartbeat:
    """Return the current record. Never waits: a writer that was killed mid-write leaves a torn one."""
    for _ in range(3):
        number, since_s, stage, step, sample, position, slowest_s, count, again = _RECORD.unpack_from(memory.data)
        if number == again:
            break
    name = ""
    if sample == _BY_NAME:
        raw = memory[_NAME_START : _NAME_START + _NAME_NBYTES].tobytes()
        name = raw.split(b"\0")[0].decode(errors="replace")
    return Heartbeat(
        since_s=_seconds(since_s),
        stage=Stage(stage) if 0 <= stage < len(Stage) else Stage.STARTED,
        step=step,
        sample=_FROM - sample + position if sample <= _FROM else sample,
        position=position,
        slowest_s=_seconds(slowest_s),
        num_samples=count,
        name=name,
    )


def _seconds(value: float) -> float:
    """Return a time as it was written, or 0 if stray writes of user code made it invalid."""
    return value if 0 <= value < _MAX_S else 0.0
