"""What a worker does can be read at any time, by whoever, without a lock; and is never something that was not so."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.ipc import (
    HEARTBEAT_NBYTES,
    Heartbeat,
    HeartbeatReader,
    HeartbeatWriter,
    Slowest,
    Stage,
    create,
    map_bytes,
)
from antifreeze.ipc import _heartbeat as board_module
from antifreeze.ipc._heartbeat import read_heartbeat


def board() -> Any:
    return np.zeros(HEARTBEAT_NBYTES, np.uint8)


def shared_board() -> Any:
    fd = create("antifreeze-test", HEARTBEAT_NBYTES)
    try:
        return map_bytes(fd, HEARTBEAT_NBYTES)
    finally:
        os.close(fd)


def test_an_empty_board_is_that_of_one_who_was_just_born() -> None:
    """It has not said anything yet."""
    record = read_heartbeat(board())

    assert (record.stage, record.since_s, record.name) == (Stage.STARTED, 0, "")


@given(st.sampled_from(Stage), st.integers(-1, 1 << 40))
def test_a_stage_is_read_as_it_was_written(stage: Stage, step: int) -> None:
    """With the time at which it began."""
    memory = board()
    before_s = time.monotonic()
    HeartbeatWriter(memory).at(stage, step)
    record = read_heartbeat(memory)

    assert (record.stage, record.step, record.sample, record.position) == (stage, step, -1, -1)
    assert before_s <= record.since_s <= time.monotonic()


INDICES = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=300),
    st.tuples(st.text(max_size=5), st.integers()),
    st.binary(max_size=300),
    st.none(),
)


@given(INDICES, st.integers(0, 1000))
def test_a_sample_of_any_kind_can_be_noted(sample: object, position: int) -> None:
    """Numbers as such, all others by how they are written, as far as there is room."""
    memory = board()
    HeartbeatWriter(memory).sample(Stage.FETCH, 3, sample, position)
    record = read_heartbeat(memory)

    assert (record.stage, record.step, record.position) == (Stage.FETCH, 3, position)
    if isinstance(sample, int) and 0 <= sample < 1 << 63:
        assert record.sample == sample
    else:
        whole = repr(sample)
        assert record.name == whole or (len(record.name) >= 60 and whole.startswith(record.name[:50]))


class Unspeakable:
    """An index that cannot be written down."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_an_index_that_cannot_be_written_down_can_be_noted() -> None:
    """It is user code that says what it looks like."""
    memory = board()
    HeartbeatWriter(memory).sample(Stage.FETCH, 0, Unspeakable(), 0)

    assert "Unspeakable" in read_heartbeat(memory).name


@given(st.lists(st.sampled_from(["sample", "at", "name"]), max_size=30))
def test_every_move_has_a_time_of_its_own_and_every_sample_is_counted_once(moves: list[str]) -> None:
    """A sample ends when something else begins."""
    memory = board()
    writer = HeartbeatWriter(memory)
    times = []
    for number, move in enumerate(moves):
        if move == "at":
            writer.at(Stage.COLLATE, number)
        else:
            writer.sample(Stage.FETCH, number, number if move == "sample" else "a name", number)
        times.append(read_heartbeat(memory).since_s)
    writer.at(Stage.IDLE)
    record = read_heartbeat(memory)

    assert sorted({*times, record.since_s}) == [*times, record.since_s]
    assert record.num_samples == sum(move != "at" for move in moves)
    assert (writer.take_slowest() is None) is (record.num_samples == 0)
    assert writer.take_slowest() is None


class Clock:
    """A clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1.0
        monkeypatch.setattr(board_module, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@given(st.lists(INDICES, max_size=12), st.sets(st.integers(0, 12)), st.integers(0, 12), st.booleans())
def test_a_walk_through_a_batch_notes_each_sample_as_it_begins(
    indices: list[Any], skip: set[int], stop: int, in_a_hurry: bool
) -> None:
    """By its place, wherever the walk is left; those that are skipped are neither noted nor met."""
    memory = board()
    writer, reader = HeartbeatWriter(memory), HeartbeatReader(memory)
    if in_a_hurry:
        walked(writer, range(64))
        reader.read()
    times, met = [0.0], []
    for index in writer.samples(Stage.FETCH, 3, indices, skip):
        record = reader.read()
        assert (record.stage, record.step, indices[record.position]) == (Stage.FETCH, 3, index)
        assert writer.position == record.position
        assert record.since_s > times[-1]
        assert reader.read() == record
        times.append(record.since_s)
        met.append(record.position)
        if len(met) == stop:
            break
    before = reader.read().num_samples
    writer.at(Stage.COLLATE, 3)

    assert met == [i for i in range(len(indices)) if i not in skip][: stop or None]
    assert reader.read().num_samples - before == (met[-1] - met[0] + 1 if met else 0)


def walked(
    writer: HeartbeatWriter, indices: Any, slow: dict[int, float] | None = None, clock: Clock | None = None
) -> None:
    """Go through a batch whose samples take no time, but for some."""
    for _ in writer.samples(Stage.FETCH, 0, indices):
        if clock is not None:
            clock.now_s += (slow or {}).get(writer.position, 1e-6)
    writer.at(Stage.COLLATE, 0)


@given(st.integers(0, 1 << 40), st.integers(1, 20))
def test_the_numbers_of_a_range_are_known_without_it(start: int, length: int) -> None:
    """An iterable dataset gives no indices; its samples are counted."""
    memory = board()
    for number in HeartbeatWriter(memory).samples(Stage.FETCH, 0, range(start, start + length)):
        assert read_heartbeat(memory).sample == number


def test_the_slowest_sample_is_known(clock: Clock) -> None:
    """For the limits; and once, for the report."""
    memory = board()
    writer = HeartbeatWriter(memory)

    def take(sample: str, seconds: float) -> None:
        writer.sample(Stage.FETCH, 0, sample, 5)
        clock.now_s += seconds

    for sample, seconds in zip("abc", [1, 30, 2], strict=True):
        take(sample, seconds)
    writer.at(Stage.IDLE)
    assert writer.take_slowest() == Slowest(5, "b", 30.0, 0)
    take("d", 3)
    writer.at(Stage.IDLE)
    assert read_heartbeat(memory).slowest_s == 30.0
    assert writer.take_slowest() is None


def test_a_walk_knows_which_sample_took_longest(clock: Clock) -> None:
    """The last one too, which ends with what comes after it."""
    for slow in range(4):
        memory = board()
        writer = HeartbeatWriter(memory)
        walked(writer, ["a", "b", "c", "d"], dict.fromkeys(range(4), 1.0) | {slow: 32.0}, clock)

        assert writer.take_slowest() == Slowest(slow, "abcd"[slow], 32.0, 0)
        assert writer.take_slowest() is None
        assert read_heartbeat(memory).slowest_s == 32.0


def test_samples_that_take_next_to_nothing_are_not_timed_one_by_one(clock: Clock) -> None:
    """Until they do take something: which of them it was is not known then, but that it was one of these is."""
    memory = board()
    writer = HeartbeatWriter(memory)
    walked(writer, range(100, 164), clock=clock)
    assert writer.take_slowest() is not None
    walked(writer, range(200, 264), clock=clock)
    assert writer.take_slowest() is None
    walked(writer, range(300, 364), {7: 5.0}, clock)
    assert writer.take_slowest() == Slowest(0, 300, pytest.approx(5.0, abs=0.01), 63)
    assert read_heartbeat(memory).slowest_s == pytest.approx(5.0, abs=0.01)
    walked(writer, range(400, 464), {7: 6.0}, clock)
    assert writer.take_slowest() == Slowest(7, 407, 6.0, 0)


def test_a_sample_that_is_not_timed_is_as_old_as_it_was_first_seen(clock: Clock) -> None:
    """Two that take long, one after the other, are not one that takes twice as long."""
    memory = board()
    writer, reader = HeartbeatWriter(memory), HeartbeatReader(memory)
    walked(writer, range(64), clock=clock)
    for number in writer.samples(Stage.FETCH, 1, range(64)):
        first = reader.read()
        clock.now_s += 3.0
        again = reader.read()
        assert (again.since_s, again.sample) == (first.since_s, number)
        assert clock.now_s - again.since_s == pytest.approx(3.0)


def consistent(record: Heartbeat) -> bool:
    """Tell whether a record of the writer below is one that it has written: all of its numbers follow from one."""
    if record.stage is Stage.COLLATE:
        return record.sample == record.position == -1
    return record.step < 0 or (record.sample == 3 * record.position or record.name == f"'{record.position}'")


def _write_for_ever(memory: Any) -> None:
    writer = HeartbeatWriter(memory)
    for number in range(1 << 60):
        writer.sample(Stage.FETCH, number, 3 * number, number)
        writer.at(Stage.COLLATE, number)


def test_what_is_read_while_it_is_written_is_almost_always_whole() -> None:
    """A torn record is read again; who was killed in the middle of writing leaves one, and that is no error."""
    memory = shared_board()
    pid = os.fork()
    if not pid:
        _write_for_ever(memory)
    try:
        while not read_heartbeat(memory).since_s:
            time.sleep(0.001)
        records = [read_heartbeat(memory) for _ in range(20_000)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    times = [record.since_s for record in records]
    each = {record.since_s: record for record in records}  # a writer that has no processor leaves one as it stands

    assert times == sorted(times)
    assert sum(map(consistent, each.values())) >= 0.9 * len(each) - 5
    assert read_heartbeat(memory).since_s >= times[-1]


@given(st.binary(min_size=512, max_size=512))
def test_any_bytes_are_some_record(raw: bytes) -> None:
    """User code can write anywhere in its process; the trainer must not fall over what it reads."""
    memory = board()
    memory[:512] = np.frombuffer(raw, np.uint8)

    record = read_heartbeat(memory)
    assert isinstance(record, Heartbeat)
    assert math.isfinite(record.since_s + record.slowest_s)


def test_a_writer_that_is_killed_anywhere_leaves_something_that_can_be_read() -> None:
    """Twenty times."""
    rng = random.Random(1)  # noqa: S311
    for _ in range(20):
        memory = shared_board()
        pid = os.fork()
        if not pid:
            _write_for_ever(memory)
        while not read_heartbeat(memory).since_s:
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        record = read_heartbeat(memory)
        assert record.since_s > 0
        assert record == read_heartbeat(memory)
