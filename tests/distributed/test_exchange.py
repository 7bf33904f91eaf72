"""A whole job in one process, without a clock: who reads what, and who says what, in jobs of four and of a thousand."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import Location
from antifreeze.distributed import RankStatus, Trouble
from antifreeze.distributed._exchange import EVERYBODY, READ_S, WAITS_S, RankExchange, StoreReader, reads_all
from antifreeze.distributed._rank_judge import Told
from antifreeze.distributed._record import RankRecord, Seen, encode, read_found, take_in, to_json, write_found
from antifreeze.distributed._store import JobStore, job_key, node_key, present, rank_key

BEAT_S = 0.25


class FakeStore:
    """A store that answers at once, and counts. It has nothing that could wait."""

    host, port = "node-0", 29500

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.keys_read = self.keys_written = self.checks = 0

    def clone(self) -> FakeStore:
        return self

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()
        self.keys_written += 1

    def check(self, keys: list[str]) -> bool:
        self.checks += 1
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.keys_read += len(keys)
        return [self.values[key] for key in keys]


FakeStore.__name__ = "TCPStore"  # it is told by its name, for torch is not imported


class AtOnce(JobStore):
    """Answers in the thread that asks; or, while ``busy_s`` is set, never; or a beat late."""

    busy_s = 0.0
    late: list[tuple[Mapping[str, str], list[str]]] | None = None

    def exchange(self, texts: Mapping[str, str], keys: list[str], timeout_s: float) -> bool:
        if self.busy_s:
            return False
        if self.late is not None:
            self.late.append((texts, keys))
            texts, keys = self.late.pop(0) if len(self.late) > 1 else ({}, [])
        self._exchange(texts, keys)
        return self.late is None


class Job:
    """Some ranks of a job, each with what it does."""

    def __init__(self, ranks: Sequence[int], world_size: int, per_node: int = 8) -> None:
        self.store = FakeStore()
        self.now_s = 100.0
        self.exchanges: dict[int, RankExchange] = {}
        self.standings: dict[int, RankStatus] = {}
        self.stopped: set[int] = set()
        for rank in ranks:
            exchange = RankExchange(AtOnce(self.store), Told(), rank, world_size)
            exchange.reader = StoreReader(rank, world_size, rank % per_node)
            who = RankRecord(rank=rank, host=f"node-{rank // per_node}", pid=1000 + rank, space=1, started=1)
            exchange._us = who
            self.exchanges[rank], self.standings[rank] = exchange, trains()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds / BEAT_S)):
            self.now_s += BEAT_S
            for rank, exchange in self.exchanges.items():
                if rank not in self.stopped:
                    exchange.go([self.standings[rank]], self.now_s)


def trains(step: int = 5, idle_s: float = 0.1) -> RankStatus:
    return RankStatus(0, step, 0.0, idle_s, warn_s=1.0, silent_s=2.0)


def waits(waited_s: float = 1.0, **facts: Any) -> RankStatus:
    return RankStatus(0, 5, waited_s, waited_s + 0.1, **({"warn_s": 1.0, "silent_s": 2.0} | facts))


def stuck(over: bool = False) -> RankStatus:
    place = Location("worker 1 (pid 99)", "fetch", "sample 17 of Noisy (batch 5)", 1.2, "train.py:12 in load")
    trouble = Trouble(1, place, "sleeping", "sleeps", over)
    return waits(trouble=trouble) if not over else trains(step=6)._replace(trouble=trouble)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Return the lines that were logged since it was last called and that hold some words."""
    caplog.set_level(logging.WARNING, "antifreeze")

    def lines(words: str = "") -> list[str]:
        found = [record.getMessage() for record in caplog.records if words in record.getMessage()]
        caplog.clear()
        return found

    return lines


Said = Callable[[str], list[str]]


# -- few ranks -----------------------------------------------------------------------------------------------------


def test_a_job_that_trains_writes_and_reads_nothing(said: Said) -> None:
    """A record each quarter of a second, and no more."""
    job = Job(range(4), 4)
    job.run(10)

    assert said("") == []
    assert job.store.keys_read == job.store.checks == 0
    assert job.store.keys_written == 4 * 10 / BEAT_S


def test_a_long_step_on_all_ranks_is_nobodys_concern(said: Said) -> None:
    """They read, and find nothing to say."""
    job = Job(range(4), 4)
    job.standings = {rank: trains(idle_s=300.0) for rank in range(4)}
    job.run(30)

    assert said("") == []
    assert job.store.keys_read > 0


def test_a_stuck_rank_is_named_by_every_rank_and_then_its_end(said: Said) -> None:
    """Once each."""
    job = Job(range(4), 4)
    job.run(1)
    job.standings = {rank: trains(idle_s=1.0) for rank in range(4)} | {2: stuck()}
    job.run(5)
    begun = said("rank 2 of 4")
    job.standings = {rank: trains(step=6) for rank in range(4)} | {2: stuck(over=True)}
    job.run(15)
    over = said("rank 2 of 4")

    assert len(begun) == len(over) == 4
    words = ("worker 1 (pid 99)", "sample 17 of Noisy", "fetch", "sleeps", "train.py:12", "[cause: sleeping]")
    assert [word for line in begun for word in words if word not in line] == []
    assert sum("this one" in line for line in begun) == 1
    assert all("recovered" in line for line in over)


def test_a_stall_that_was_healed_quickly_is_named_after_it(said: Said) -> None:
    """A rank that has waited reads on for a while when it goes on: the news may come with the cure."""
    job = Job(range(4), 4)
    job.standings = {rank: trains(idle_s=1.0) for rank in range(4)}
    job.run(1)
    job.standings = {rank: trains(step=6) for rank in range(4)} | {2: stuck(over=True)}
    job.run(2)

    assert len(said("stalled for 1.2 s in fetch at sample 17 of Noisy")) == 4


def test_an_answer_that_comes_late_is_still_an_answer(said: Said) -> None:
    """A store that is busy answers after the round that has asked it."""
    job = Job(range(4), 4)
    for exchange in job.exchanges.values():
        exchange.store.late = []  # type: ignore[attr-defined]
    job.standings = {rank: trains(idle_s=1.0) for rank in range(4)} | {2: stuck()}
    job.run(4)

    assert len(said("rank 2 of 4")) == 4


def test_a_stopped_rank_is_named_by_all_others(said: Said) -> None:
    """By their own clocks: its counter does not change. When it goes on, that is said, too."""
    job = Job(range(4), 4)
    job.run(1)
    job.stopped, job.standings = {2}, {rank: trains(idle_s=1.0) for rank in range(4)}
    job.run(2)
    early = said("")
    job.run(1)
    silent = said("rank 2 of 4")
    job.stopped, job.standings = set(), {rank: trains(step=6) for rank in range(4)}
    job.run(2)

    assert early == []
    assert len(silent) == 3
    assert all("has been silent for 2." in line for line in silent)
    assert len(said("rank 2 of 4 (host node-0, pid 1002) responds again")) == 3


def test_who_was_stopped_itself_accuses_nobody(said: Said) -> None:
    """It knows nothing of what happened meanwhile: all counters stand where it saw them last, for a moment."""
    job = Job(range(4), 4)
    job.standings = {rank: waits(0.9) for rank in range(4)}
    job.run(3)
    job.stopped = {2}
    job.standings = {rank: trains(step=9) for rank in range(4)}
    job.run(1)
    job.now_s += 600
    job.stopped = {0, 1, 3}
    job.standings[2] = trains(idle_s=600.0)
    job.run(1)
    job.stopped = set()
    job.run(1)

    assert said("") == []


def test_a_rank_that_has_ended_its_epoch_may_be_silent(said: Said) -> None:
    """It says so with its last record."""
    job = Job(range(4), 4)
    job.run(1)
    job.exchanges[2].leave()
    job.stopped, job.standings = {2}, {rank: trains(idle_s=1.0) for rank in range(4)}
    job.run(60)

    assert said("") == []


def test_a_rank_without_our_loader_is_not_waited_for(said: Said) -> None:
    """Nothing is known of it, and nothing is said; of the others, all is."""
    job = Job([0, 1, 3], 4)
    job.standings = {rank: trains(idle_s=1.0) for rank in (0, 1)} | {3: stuck()}
    job.run(60)

    assert len(said("rank 3 of 4")) == 3


def test_many_stuck_ranks_take_few_lines(said: Said) -> None:
    """A file system that is down stops them all."""
    job = Job(range(40), 40)
    job.standings = dict.fromkeys(range(40), stuck())
    job.run(5)
    lines = said("")

    assert len(lines) <= 5 * 40
    assert sum("are stalled, too" in line for line in lines) >= 40


@pytest.mark.parametrize("by_agent", [False, True])
def test_a_store_that_does_not_answer_is_named(said: Said, monkeypatch: pytest.MonkeyPatch, by_agent: bool) -> None:
    """Rank 0 holds it, and is what has stopped; unless torchrun holds it."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(by_agent))
    job = Job(range(4), 4)
    job.standings = {rank: waits(0.9) for rank in range(4)}
    job.run(2)
    job.stopped = {0}
    for busy_s in (1.0, 2.5, 8.0):
        for rank in (1, 2, 3):
            job.exchanges[rank].store.busy_s = busy_s  # type: ignore[misc]
        job.run(1)
    lines = said("")
    for rank in (1, 2, 3):
        job.exchanges[rank].store.busy_s = 0.0  # type: ignore[misc]
    job.stopped = set()
    job.run(2)

    assert len(lines) == 3
    assert all("job's store (node-0:29500)" in line for line in lines)
    assert all(("torchrun's agent" in line) is by_agent for line in lines)
    assert all(("rank 0 of 4 (host node-0, pid 1000) has been silent" in line) is not by_agent for line in lines)
    assert len(said("rank 0 of 4")) == (0 if by_agent else 3)


# -- many ranks ----------------------------------------------------------------------------------------------------


def test_in_a_large_job_one_rank_reads_for_all(said: Said) -> None:
    """The others read one key each; all of them name the rank."""
    job = Job(range(256), 256)
    job.run(1)
    job.standings = {rank: trains(idle_s=1.0) for rank in range(256)} | {77: stuck()}
    job.store.keys_read = job.store.checks = 0
    job.run(4)
    reads = job.store.keys_read
    lines = said("rank 77 of 256")
    job.standings = {rank: trains(step=6) for rank in range(256)} | {77: stuck(over=True)}
    job.run(8)

    assert len(lines) == 256
    assert reads <= 8 * (256 + 2 * 256)  # in four seconds: eight times all records, and two keys for everybody
    assert len(said("rank 77 of 256 (host node-9, pid 1077) recovered")) >= 255


def test_if_the_one_who_reads_for_all_is_stopped_each_machine_reads_for_itself(said: Said) -> None:
    """The first rank of each; and of a machine whose first rank is stopped too, everybody."""
    job = Job(range(80), 80)
    job.run(1)
    job.stopped = {0, 8}
    job.standings = {rank: trains(idle_s=1.0) for rank in range(80)}
    job.store.keys_read = 0
    job.run(8)
    zero, eight = [], []
    for line in said("silent"):
        (zero if "rank 0 of 80" in line else eight).append(line)

    assert len(zero) == len(eight) == 78
    readers = 9 + 7 + 7  # nine first ranks, and those whose first rank is stopped
    assert job.store.keys_read <= 16 * readers * 80 + 16 * 80 * 2


@given(
    rank=st.integers(0, 2000),
    world=st.integers(2, 2001),
    local=st.none() | st.integers(0, 7),
    job_silent_s=st.floats(0, 100),
    node_silent_s=st.floats(0, 100),
)
def test_somebody_always_reads(
    rank: int, world: int, local: int | None, job_silent_s: float, node_silent_s: float
) -> None:
    """If nothing comes from anybody, a rank reads for itself; if all is well in a large job, only rank 0 does."""
    reader = StoreReader(rank % world, world, local)

    assert reads_all(reader, math.inf, math.inf)
    if world > EVERYBODY and reader.rank != 0:
        assert not reads_all(reader, 0.0, node_silent_s)
    if world <= EVERYBODY:
        assert reads_all(reader, job_silent_s, node_silent_s)


# -- what is read --------------------------------------------------------------------------------------------------


@given(beats=st.lists(st.tuples(st.integers(1, 3), st.floats(0.1, 2)), min_size=1, max_size=20))
def test_a_rank_is_silent_since_its_counter_last_changed_by_our_clock(beats: list[tuple[int, float]]) -> None:
    """Clocks of machines differ; ours is the only one that is asked."""
    seen: dict[int, Seen] = {}
    now_s, last, since_s = 0.0, 0, 0.0
    for beat, seconds in beats:
        now_s += seconds
        if beat != last:
            last, since_s = beat, now_s
        raw = encode(to_json(RankRecord(rank=1, pid=5, beat=beat, active=True))).encode()
        seen = take_in(seen, {rank_key(1): raw}, range(2), now_s)

    assert seen[1].since_s == since_s
    assert 0 not in seen


@given(silent=st.dictionaries(st.integers(0, 99), st.floats(0, 50), max_size=20), now_s=st.floats(100, 200))
def test_what_one_rank_has_found_another_can_read(silent: dict[int, float], now_s: float) -> None:
    """The clock of the one is not the clock of the other: how long, not when, is written."""
    seen = {rank: Seen(RankRecord(rank=rank, beat=3), now_s - silent_s) for rank, silent_s in silent.items()}
    found = read_found(write_found(seen, list(seen), 7, now_s).encode(), 100, 5000.0)

    assert found is not None
    assert found.beat == 7
    assert list(found.seen) == list(silent)[:16]
    assert all(math.isclose(5000.0 - found.seen[r].since_s, silent[r], abs_tol=0.01) for r in found.seen)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"beat": 1}', b'{"beat": 1, "found": 3}', b'{"beat": "x", "found": []}'])
def test_what_nobody_of_us_has_found_is_nothing(raw: bytes) -> None:
    """The store has no lock."""
    assert read_found(raw, 4, 0.0) is None


def test_entries_that_are_not_well_formed_are_left_out() -> None:
    """One good one among them is read."""
    entries = [1, [1], [1, 2], ["x", {}], [-1, {"rank": 1}], [1, {"rank": 9}], [1, {"rank": "1"}], [1.5, {"rank": 2}]]
    found = read_found(encode({"beat": 1, "found": entries}).encode(), 4, 10.0)

    assert found is not None
    assert found.seen == {2: Seen(RankRecord(rank=2), 8.5)}


@given(there=st.sets(st.integers(0, 40)), size=st.integers(1, 40), most=st.integers(0, 100))
def test_keys_are_looked_for_without_waiting_for_those_that_are_not_there(
    there: set[int], size: int, most: int
) -> None:
    """What is found is there; with enough questions, all of it is found; never more are asked."""
    asked: list[list[str]] = []

    def check(keys: list[str]) -> bool:
        asked.append(keys)
        return all(int(key) in there for key in keys)

    found = present(check, [str(i) for i in range(size)], most)

    assert {int(key) for key in found} <= there
    assert len(asked) <= most
    assert [] not in asked
    if most >= 2 * size:
        assert {int(key) for key in found} == there & set(range(size))


def test_keys_do_not_collide() -> None:
    """A machine may have any name."""
    keys = [rank_key(0), job_key(), *(node_key(name) for name in ("0", "found", "node-1"))]

    assert len({*keys}) == len(keys)


def test_the_time_to_speak_is_within_the_promise() -> None:
    """A rank begins to wait, reads, sees a counter once and then for its limit; two seconds are for all but that."""
    waits_s = WAITS_S + BEAT_S
    assert waits_s + 2 * READ_S <= 2.0
