"""One fixed record for each worker, in shared memory: what it is doing, and since when."""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NamedTuple

from antifreeze.ipc._anonymous_memory import Bytes

_RECORD = struct.Struct("@qd4qd2q")
_NAME_START = 80
_NAME_NBYTES = 200
HEARTBEAT_NBYTES = 4096
_BY_NAME, _BY_PLACE, _FROM = -2, -3, -4
"""What stands for a sample that is no number: see its name, see its place, or count from a number up to its place."""
_MOST = 1 << 63
_MOST_S = 1e12
_BRIEF_S, _MANY = 2e-5, 8
"""Samples that take less than this, so many at a time, are not timed one by one: it would double what they cost."""


class Stage(enum.IntEnum):
    """What a worker is doing."""

    STARTED = 0
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
class Heartbeat:
    """What a worker's record said at one moment."""

    since_s: float
    """Since when; also tells two records of one worker apart."""
    stage: Stage
    step: int
    sample: int
    """The index that the dataset was asked for, if it is known here and a number; else below 0."""
    position: int
    """Which sample of its batch."""
    slowest_s: float
    """The longest that one sample has taken so far."""
    num_samples: int
    name: str
    """The index, if it is not a number."""


class Slowest(NamedTuple):
    """A sample that took longer than others."""

    position: int
    sample: Any
    seconds: float
    others: int
    """How many after it were not timed: it may have been one of these."""


class HeartbeatWriter:
    """The worker's side. Each sample is written down, so that must take a fraction of a microsecond."""

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
        """Of the samples that it goes through; None if it is at a single one."""
        self._is_brief = False

    @property
    def position(self) -> int:
        """The place of the sample that it is at."""
        return self._fields[5]

    def at(self, stage: Stage, step: int = -1) -> None:
        """Write down what begins now."""
        self._write(self._end(), stage, step, -1, -1)

    def sample(self, stage: Stage, step: int, sample: object, position: int) -> None:
        """Write down which sample begins now."""
        now_s = self._end()
        self._sample, self._indices, self._first, self._begun_s = sample, None, position, now_s
        self._write(now_s, stage, step, self._number(sample), position)

    def samples(self, stage: Stage, step: int, indices: Iterable[Any], skip: Container[int] = ()) -> Iterator[Any]:
        """Go through the samples of a batch, but for those at these places, and write down each one as it begins.

        After the first, that is its place, and the time unless samples take next to nothing: the reader knows what the
        batch is made of, and sees whether the place changes.
        """
        fields, times, places = self._fields, self._times, positions_of(indices, skip)
        for position, sample in places:
            self.sample(stage, step, sample, position)
            yield sample
            break
        else:
            return
        self._indices = indices
        fields[4] = _FROM - indices.start if type(indices) is range else _BY_PLACE
        if self._is_brief:
            for position, sample in places:
                fields[5] = position
                yield sample
            return
        since_s, worst_s = times[1], self._slowest_s
        for position, sample in places:
            now_s = monotonic()
            if now_s - since_s > worst_s:
                worst_s = now_s - since_s
                self._slower(fields[5], worst_s)
            # Order: a reader between these two lines finds a sample younger than it is, never older.
            times[1] = since_s = now_s
            fields[5] = position
            yield sample

    def _write(self, now_s: float, stage: Stage, step: int, sample: int, position: int) -> None:
        fields = self._fields
        # Order: the first and the last number are the same one; a reader that finds them different reads again. Not by
        # pack_into: that makes all of it zero before it writes.
        self._notes = fields[0] = number = self._notes + 1
        self._times[1] = now_s
        fields[2], fields[3], fields[4], fields[5] = stage, step, sample, position
        self._times[6] = self._slowest_s
        fields[7] = self._num_samples
        fields[8] = number

    def _end(self) -> float:
        """Count the samples that have ended now, if any; return the time."""
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

    def _number(self, sample: object) -> int:
        """Return the sample, if it is a number; else write its name beside."""
        return sample if type(sample) is int and 0 <= sample < _MOST else self._named(sample)

    def _named(self, sample: object) -> int:
        name = repr_of(sample).encode(errors="replace")[:_NAME_NBYTES]
        self._memory[_NAME_START : _NAME_START + len(name) + 1] = name + b"\0"
        return _BY_NAME

    def take_slowest(self) -> Slowest | None:
        """Return the sample that took longest of all, if it has come since the last call."""
        found, self._slowest = self._slowest, None
        return found


def repr_of(sample: object) -> str:
    """Return how an index of the user's is written."""
    try:
        return repr(sample)
    except Exception:  # noqa: BLE001  border: it may do anything
        return object.__repr__(sample)


def positions_of(indices: Iterable[Any], skip: Container[int]) -> Iterator[tuple[int, Any]]:
    """Return the samples of a batch with their places, but for those at some of them."""
    places = enumerate(indices)
    return (place for place in places if place[0] not in skip) if skip else places


class HeartbeatReader:
    """The trainer's side. Remembers when it saw a place first: not every sample is written down with its time."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self._seen = (0.0, -1, 0.0)

    def read(self) -> Heartbeat:
        """Return what the record says now. Threads may do so at once."""
        record = read_heartbeat(self._memory)
        written_s, position, since_s = self._seen
        if record.since_s != written_s:
            since_s = record.since_s
        elif record.position != position:
            since_s = monotonic()
        # Order: all of it at once, or another thread would find the time of one place with another.
        self._seen = (record.since_s, record.position, since_s)
        return replace(record, since_s=since_s)


def read_heartbeat(memory: Bytes) -> Heartbeat:
    """Return what a record says now. Never waits: a writer that was killed in mid-write leaves a torn one."""
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
    """Return a time as it was written; user code that writes where it should not leaves any bits."""
    return value if 0 <= value < _MOST_S else 0.0
