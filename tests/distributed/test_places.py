"""Where loaders of every kind stand, as other ranks see it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_exchange_thread import Group, record_of, until
from torch.distributed import TCPStore

import antifreeze as af
from antifreeze.core import Location
from antifreeze.decode import ThreadProgress
from antifreeze.decode._thread_progress import location_of
from antifreeze.diagnosis import History
from antifreeze.distributed import _exchange as exchange_module
from antifreeze.distributed._record import SILENT_S, WARN_S, RankStatus
from antifreeze.formats._parquet import Parquet
from antifreeze.loaders._main_thread_location import MainThreadLocation


def test_the_thread_that_stands_longest_is_the_one_that_is_waited_for() -> None:
    """Those that wait for room, or are done, hold nobody up."""
    notes = [ThreadProgress(f"decoder thread {i}") for i in range(4)]
    notes[2].at("decode", "data/part-3.parquet", 5, 100)
    notes[0].at("wait for room")
    notes[1].at("open", "data/part-4.parquet", 0)
    notes[3].at("done")

    place = location_of(notes)

    assert (place.worker, place.stage, place.what) == (
        "decoder thread 2",
        "decode",
        "data/part-3.parquet, row group 5, row 100",
    )
    assert place.still_s > 0
    assert location_of([notes[0], notes[3]]) == Location()


def test_without_workers_the_line_of_the_users_code_is_named() -> None:
    """Seen twice at the same line, the thread has stood there since the first time."""
    made, leave = threading.Event(), threading.Event()
    found: list[MainThreadLocation] = []

    def run() -> None:
        found.append(MainThreadLocation())
        made.set()
        leave.wait(60)

    thread = threading.Thread(target=run)
    thread.start()
    made.wait(60)
    first = found[0].where()
    until(lambda: found[0].where().still_s > 0.01, "some time has passed")
    second = found[0].where()
    leave.set()
    thread.join(60)

    assert first.line == second.line
    assert f"{Path(__file__).name}:" in second.line
    assert second.line.endswith("in run")
    assert second.still_s > first.still_s


def test_a_history_tells_waiting_from_training() -> None:
    """From the two moments that it is told of anyway."""
    history = History(2, 8)
    history.batches = 100
    fresh = RankStatus(epoch=1, **history.progress(100))
    history.asked()
    asked = RankStatus(epoch=1, **history.progress(100, 4))
    history.delivered(8, 0)
    history.answered()
    trains = RankStatus(epoch=1, **history.progress(100, 60))

    assert (fresh.waited_s, fresh.idle_s, fresh.step) == (0.0, 0.0, 0)
    assert asked.waited_s > 0
    assert asked.idle_s >= asked.waited_s
    assert (trains.waited_s, trains.step) == (0.0, 1)
    assert trains.idle_s > 0
    assert [(s.warn_s, s.silent_s) for s in (fresh, asked, trains)] == [(WARN_S, SILENT_S), (2.0, 4), (WARN_S, 60)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this process one of several ranks, with a store in it."""
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    group = Group(store)
    monkeypatch.setattr(exchange_module, "distributed_module", lambda: group)
    return store


@pytest.mark.parametrize("time_to_open", [0, 1], ids=["first look", "reading"])
def test_a_decoder_that_waits_for_its_file_is_named_with_it(
    store: Any, write_data: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, time_to_open: int
) -> None:
    """Without user code there is no worker process: the threads say what they are at, from the first file on."""
    data = write_data(40, 40)
    late, opened, now = data.files[1], [], threading.Event()
    really_open = Parquet.open

    def slow_open(self: Any, path: str, *rest: Any) -> Any:
        opened.append(path)
        if opened.count(str(late)) == time_to_open + 1:
            now.wait(60)
        return really_open(self, path, *rest)

    monkeypatch.setattr(Parquet, "open", slow_open)
    dataset = af.StreamingDataset(data.path, format="numpy")
    loader = af.StreamingDataLoader(dataset, batch_size=10, num_workers=1)
    seen: list[int] = []
    thread = threading.Thread(target=lambda: [seen.extend(batch["n"].tolist()) for batch in loader])
    thread.start()
    until(lambda: "what" in record_of(store), "the file is named")
    said = record_of(store)
    now.set()
    thread.join(60)

    assert seen == list(range(80))
    assert said["worker"].startswith("decoder thread")
    assert said["stage"] == "open"
    assert said["what"].startswith(f"{late}, row group ")


class Slow:
    """A dataset whose fourth sample waits."""

    def __init__(self, now: threading.Event) -> None:
        self.now = now

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> int:
        if i == 3:
            self.now.wait(60)
        return i


def test_user_code_in_the_training_process_is_named_by_its_line(store: Any) -> None:
    """With ``num_workers=0`` nobody else could say it."""
    now, seen = threading.Event(), []
    loader = af.DataLoader(Slow(now), batch_size=1)
    thread = threading.Thread(target=lambda: seen.extend(batch.item() for batch in loader))
    thread.start()
    until(lambda: "in __getitem__" in record_of(store).get("line", ""), "the line is told")
    said = record_of(store)
    now.set()
    thread.join(60)

    assert seen == list(range(6))
    assert (said["worker"], said["step"], said["pid"]) == ("training process", 3, os.getpid())
    assert Path(__file__).name in said["line"]


def test_rows_of_a_transform_are_named_by_file_and_row(
    store: Any, write_data: Callable[..., Any], tmp_path: Path
) -> None:
    """What the supervisor of the workers has found."""
    data, flag = write_data(40, 40), tmp_path / "once"

    def transform(row: dict[str, Any]) -> dict[str, Any]:
        if row["n"] == 57 and not flag.exists():
            flag.touch()
            time.sleep(600)
        return row

    dataset = af.StreamingDataset(data.path, format="numpy", transform=transform)
    seen: list[int] = []
    said: dict[str, Any] = {}
    for batch in af.StreamingDataLoader(dataset, batch_size=8, num_workers=2, stall_limit=2):
        said = record_of(store) if record_of(store).get("number") and not said else said
        seen += batch["n"].tolist()

    assert seen == list(range(80))
    assert (said["stage"], said["cause"]) == ("transform", "sleeping")
    assert f"{data.files[1]}, row 17 of the file (batch 7)" in said["what"]
    assert "in transform" in said["line"]
