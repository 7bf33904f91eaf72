"""What a worker does can be read at any time, by whoever, without a lock; and is never something that was not so."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.transport import BOARD_NBYTES, BoardWriter, Record, Stage, create, map_bytes, read_board
from antifreeze.transport import _board as board_module


def board() -> Any:
    return np.zeros(BOARD_NBYTES, np.uint8)


def shared_board() -> Any:
    fd = create("antifreeze-test", BOARD_NBYTES)
    try:
        return map_bytes(fd, BOARD_NBYTES)
    finally:
        os.close(fd)


def test_an_empty_board_is_that_of_one_who_was_just_born() -> None:
    """It has not said anything yet."""
    record = read_board(board())

    assert (record.stage, record.since_s, record.name) == (Stage.BORN, 0, "")


@given(st.sampled_from(Stage), st.integers(-1, 1 << 40))
def test_a_stage_is_read_as_it_was_written(stage: Stage, step: int) -> None:
    """With the time at which it began."""
    memory = board()
    before_s = time.monotonic()
    BoardWriter(memory).at(stage, step)
    record = read_board(memory)

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
    BoardWriter(memory).sample(Stage.FETCH, 3, sample, position)
    record = read_board(memory)

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
    BoardWriter(memory).sample(Stage.FETCH, 0, Unspeakable(), 0)

    assert "Unspeakable" in read_board(memory).name


@given(st.lists(st.sampled_from(["sample", "at", "name"]), max_size=30))
def test_every_move_has_a_time_of_its_own_and_every_sample_is_counted_once(moves: list[str]) -> None:
    """A sample ends when something else begins."""
    memory = board()
    writer = BoardWriter(memory)
    times = []
    for number, move in enumerate(moves):
        if move == "at":
            writer.at(Stage.COLLATE, number)
        else:
            writer.sample(Stage.FETCH, number, number if move == "sample" else "a name", number)
        times.append(read_board(memory).since_s)
    writer.at(Stage.IDLE)
    record = read_board(memory)

    assert sorted({*times, record.since_s}) == [*times, record.since_s]
    assert record.num_samples == sum(move != "at" for move in moves)
    assert (writer.take_slowest() is None) is (record.num_samples == 0)
    assert writer.take_slowest() is None


def test_the_slowest_sample_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In all, for the limits; since the last time it was asked, for the report."""
    now_s = [0.0]
    monkeypatch.setattr(board_module, "monotonic", lambda: now_s[0])
    memory = board()
    writer = BoardWriter(memory)

    def take(sample: int, seconds: float) -> None:
        writer.sample(Stage.FETCH, 0, sample, sample)
        now_s[0] += seconds

    for sample, seconds in enumerate([1, 30, 2]):
        take(sample, seconds)
    writer.at(Stage.IDLE)
    assert writer.take_slowest() == (1, 30.0)
    assert read_board(memory).slowest_s == 30.0
    take(7, 3)
    writer.at(Stage.IDLE)
    assert read_board(memory).slowest_s == 30.0
    assert writer.take_slowest() == (7, 3.0)


@given(st.lists(INDICES, max_size=12), st.sets(st.integers(0, 12)), st.integers(0, 12))
def test_a_walk_through_a_batch_notes_each_sample_as_it_begins(indices: list[Any], skip: set[int], stop: int) -> None:
    """As one note for each would, wherever the walk is left; those that are skipped are neither noted nor met."""
    memory, other = board(), board()
    writer, single = BoardWriter(memory), BoardWriter(other)
    times = [0.0]
    met = []
    for position, index in writer.samples(Stage.FETCH, 3, indices, skip):
        single.sample(Stage.FETCH, 3, index, position)
        record = read_board(memory)
        assert replace(record, since_s=0.0) == replace(read_board(other), since_s=0.0, slowest_s=0.0, num_samples=0)
        assert record.since_s > times[-1]
        times.append(record.since_s)
        met.append((position, index))
        if len(met) == stop:
            break
    writer.at(Stage.COLLATE, 3)

    assert met == [(i, index) for i, index in enumerate(indices) if i not in skip][: stop or None]
    assert read_board(memory).num_samples == (met[-1][0] - met[0][0] + 1 if met else 0)
    assert (writer.take_slowest() is None) is (not met)


def test_a_walk_knows_which_sample_took_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one too, which ends with what comes after it."""
    for slow in range(4):
        now_s = [1.0]
        monkeypatch.setattr(board_module, "monotonic", lambda now_s=now_s: now_s[0])
        memory = board()
        writer = BoardWriter(memory)
        for position, index in writer.samples(Stage.FETCH, 0, ["a", "b", "c", "d"], ()):
            assert "abcd"[position] == index
            now_s[0] += 32.0 if position == slow else 1.0
        writer.at(Stage.COLLATE, 0)

        assert writer.take_slowest() == ("abcd"[slow], 32.0)
        assert read_board(memory).slowest_s == 32.0


def consistent(record: Record) -> bool:
    """Tell whether a record of the writer below is one that it has written: all of its numbers follow from one."""
    if record.stage is Stage.COLLATE:
        return record.sample == record.position == -1
    return record.step < 0 or (record.sample == 3 * record.position or record.name == f"'{record.position}'")


def _write_for_ever(memory: Any) -> None:
    writer = BoardWriter(memory)
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
        while not read_board(memory).since_s:
            time.sleep(0.001)
        records = [read_board(memory) for _ in range(20_000)]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    times = [record.since_s for record in records]
    each = {record.since_s: record for record in records}  # a writer that has no processor leaves one as it stands

    assert times == sorted(times)
    assert sum(map(consistent, each.values())) >= 0.9 * len(each) - 5
    assert read_board(memory).since_s >= times[-1]


@given(st.binary(min_size=512, max_size=512))
def test_any_bytes_are_some_record(raw: bytes) -> None:
    """User code can write anywhere in its process; the trainer must not fall over what it reads."""
    memory = board()
    memory[:512] = np.frombuffer(raw, np.uint8)

    record = read_board(memory)
    assert isinstance(record, Record)
    assert math.isfinite(record.since_s + record.slowest_s)


def test_a_writer_that_is_killed_anywhere_leaves_something_that_can_be_read() -> None:
    """Twenty times."""
    rng = random.Random(1)  # noqa: S311
    for _ in range(20):
        memory = shared_board()
        pid = os.fork()
        if not pid:
            _write_for_ever(memory)
        while not read_board(memory).since_s:
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        record = read_board(memory)
        assert record.since_s > 0
        assert record == read_board(memory)
