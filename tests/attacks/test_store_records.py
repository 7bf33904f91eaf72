"""Whoever reaches the job's store writes what it likes: no error in the trainer, no flood, no raw text in the log."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hostile_values import LONG_TEXT, deep, mutated

from antifreeze.distributed import RankStatus
from antifreeze.distributed import _store as store_module
from antifreeze.distributed._exchange import RankExchange, StoreReader
from antifreeze.distributed._rank_judge import AGAIN_S, Told
from antifreeze.distributed._record import RankRecord, read_found, take_in, to_json
from antifreeze.distributed._store import MAX_READ_NBYTES, Answer, JobStore, job_key, node_key, rank_key
from antifreeze.loaders._pad_ranks import PaddedRanks

BEAT_S = 0.25
MAX_LINE_CHARS = 2000
WAITS = RankStatus(0, 5, 0.0, 60.0, warn_s=1.0, silent_s=2.0)
HONEST = to_json(
    RankRecord(
        rank=1,
        host="node-1",
        pid=77,
        started=5,
        space=9,
        beat=3,
        active=True,
        epoch=2,
        step=8,
        waited_s=4.0,
        still_s=4.0,
        warn_s=1.0,
        silent_s=2.0,
        worker="worker 1 (pid 99)",
        stage="fetch",
        what="sample 17",
        line="train.py:3 in load",
        number=1,
        cause="sleeping",
        title="sleeps",
    )
)
RAW: list[bytes] = [
    *(b"", b"null", b"[]", b"{}", b"\xff\xfe", b"1e999", b"NaN", b'{"rank":1', b'"' * 99, b"true"),
    *(b"[" * 3000, b"[" * 200_000, b'{"a":' * 3000, b"9" * 5000, LONG_TEXT.encode()),
    *(f'{{"rank":1,"active":true,"{name}":{"9" * 3500}}}'.encode() for name in ("pid", "step", "warn_s", "beat")),
    b'{"rank":true,"active":true}',
    b'{"rank":1.0,"active":true,"silent_s":0}',
    b'{"rank":7,"active":true,"silent_s":0}',
    json.dumps(HONEST | {"worker": "\x1b[31m\n\r\0fake line", "host": "{pid} %s"}).encode(),
]


class Store:
    """A store in this process; it is known by its name."""

    host, port = "node-0", 29500

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.reads = 0

    def clone(self) -> Store:
        return self

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.reads += len(keys)
        return [self.values[key] for key in keys]

    def get(self, key: str) -> bytes:
        return self.values[key]


Store.__name__ = "TCPStore"


class AtOnce(JobStore):
    """Answers in the thread that asks, and lets errors through, which the real one would swallow."""

    def exchange(self, texts: Mapping[str, str], keys: list[str], timeout_s: float) -> bool:
        for key, text in texts.items():
            self.put(key, text)
        if keys:
            self.answers.append(Answer(keys, self.fetch(keys)))
        return True


class Victim:
    """Rank 0, which waits and reads what others have written."""

    def __init__(self, world_size: int = 4, rank: int = 0) -> None:
        self.store, self.now_s = Store(), 100.0
        self.exchange = RankExchange(AtOnce(self.store), Told(), rank, world_size)
        self.exchange.reader = StoreReader(rank, world_size, rank % 8)

    def run(self, seconds: float, write: Callable[[Store, float], None]) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.now_s += BEAT_S
            write(self.store, self.now_s)
            self.exchange.go([WAITS], self.now_s)


def check_log(caplog: pytest.LogCaptureFixture, most: int) -> None:
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= most
    for line in lines:
        assert len(line) < MAX_LINE_CHARS
        assert all(part.isprintable() for part in line.split("\n"))
        assert line.count("\n") <= 1


def hostile_record(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return rng.choice(RAW)
    value, _ = mutated(HONEST | {"beat": rng.randrange(10**6), "number": rng.randrange(99)}, rng)
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return rng.choice(RAW)


def attack(seed: int, seconds: float, caplog: pytest.LogCaptureFixture, *, world_size: int = 4, rank: int = 0) -> None:
    rng, victim = random.Random(seed), Victim(world_size, rank)  # noqa: S311
    others = [other for other in range(min(world_size, 4)) if other != rank]

    def write(store: Store, now_s: float) -> None:
        for other in others:
            store.values[rank_key(other)] = hostile_record(rng).replace(b'"rank": 1', b'"rank": %d' % other)
        for key in (job_key(), node_key(victim.exchange._us.host)):
            found = [[rng.choice([0, -1, 10**400, "x", None, True, 5.5]), HONEST], [1, deep()[:0]], HONEST, 7]
            store.values[key] = json.dumps({"beat": rng.choice([1, 2, 10**4000, True, "x"]), "found": found}).encode()

    caplog.clear()
    victim.run(seconds, write)
    # In every 30 s, each rank is spoken of once when a stall begins and once when it is over; or in a line of many.
    check_log(caplog, most=2 * len(others) * (1 + int(seconds / AGAIN_S)) + len(others))


def test_hostile_records_raise_nothing_and_are_no_flood(caplog: pytest.LogCaptureFixture) -> None:
    """Types, sizes, depths, numbers and ranks that nobody has, four times a second for minutes."""
    caplog.set_level(logging.WARNING, "antifreeze")
    for seed in range(4):
        attack(seed, 90.0, caplog)
        attack(seed, 45.0, caplog, world_size=1000, rank=9)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_hostile_records_for_hours(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """The same, for long."""
    caplog.set_level(logging.WARNING, "antifreeze")
    attack(seed, 600.0, caplog)


def test_a_rank_that_has_another_stall_in_every_record_is_spoken_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Well-formed records, each with another number, another process and another step."""
    caplog.set_level(logging.WARNING, "antifreeze")
    victim = Victim()

    def write(store: Store, now_s: float) -> None:
        number = int(now_s / BEAT_S)
        record = HONEST | {"number": number, "pid": number, "step": number, "beat": number}
        store.values[rank_key(1)] = json.dumps(record).encode()

    victim.run(120.0, write)
    begun = [record for record in caplog.records if "recovered" not in record.getMessage()]
    assert 2 <= len(begun) <= 1 + 120.0 / AGAIN_S
    check_log(caplog, most=2 * len(begun))


def test_a_value_of_megabytes_is_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store sends it as a whole, once; other ranks are read meanwhile."""
    now_s = 1000.0
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now_s)
    store = Store()
    store.values = {"good": b"{}", "large": b"x" * (MAX_READ_NBYTES + 1)}
    ours = JobStore(store)

    assert [ours.fetch(["good", "large"]) for _ in range(10)] == [{"good": b"{}"}] * 10
    assert store.reads == 11
    now_s += 31.0
    store.values["large"] = b"[]"
    assert ours.fetch(["good", "large"]) == {"good": b"{}", "large": b"[]"}


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_what_is_no_record_takes_no_time(raw: bytes) -> None:
    """It is left alone, or read as far as it has the form of one."""
    began_s = time.monotonic()
    seen = take_in({}, {rank_key(1): raw}, range(4), 5.0)
    found = read_found(raw, 4, 5.0)

    assert time.monotonic() - began_s < 2.0
    assert found is None
    assert all(type(value) in (int, float, str, bool) for one in seen.values() for value in one.record)


# -- ranks that are made even ---------------------------------------------------------------------------------------


class Distributed:
    """Two ranks, of which this is the first."""

    def __init__(self, store: Store) -> None:
        self.distributed_c10d = self
        self._get_default_store = lambda: store
        self.get_rank = lambda: 0
        self.get_world_size = lambda: 3


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"has",
        b"has x",
        b"has -1",
        b"ended 9 9",
        b"has " + b"9" * 5000,
        b"\xff\xfe 1",
        b"has \xc2\xb2",
        b"x" * 10**6,
    ],
)
def test_nonsense_about_batches_counts_as_nothing_said(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch ends as if that rank did not take part."""
    monkeypatch.setattr("antifreeze.loaders._pad_ranks._BEGIN_S", 0.0)
    store = Store()
    store.values = {"k/1": raw, "k/2": b"ended 2"}
    ranks: Any = PaddedRanks(iter([1, 2]), lambda: iter([1, 2]), "k", Distributed(store))

    assert list(ranks) == [1, 2]
