"""A read that never returns is named within the limit, and holds up neither what came before nor the end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from antifreeze import Stalled, StreamingDataLoader, StreamingDataset
from antifreeze.formats import Parquet
from conftest import more

if TYPE_CHECKING:
    from conftest import Data

LIMIT_S = 0.3
# The promise is the limit plus one second; the rest is for a machine that is busy with other tests.
BOUND_S = LIMIT_S + 1.0 + 4.0
HANG_S = 40.0


class Dead:
    """A disk that stops answering for some fragments, until it is let go."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.reached = threading.Event()
        self.stuck: Callable[[str, int], bool] = lambda _path, _group: False

    def wait(self) -> None:
        self.reached.set()
        self.released.wait(HANG_S)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dead]:
    disk = Dead()
    real = Parquet.open

    def open_(self: Parquet, path: str, group: int, *rest: Any) -> Any:
        if disk.stuck(path, group):
            disk.wait()
        return real(self, path, group, *rest)

    monkeypatch.setattr(Parquet, "open", open_)
    yield disk
    disk.released.set()


def until_error(batches: Any, check: Callable[[Any], list[int]]) -> tuple[list[int], BaseException, float]:
    """Return the rows that came, the error, and the seconds between the last batch and the error."""
    found: list[int] = []
    result: list[tuple[BaseException, float]] = []

    def read() -> None:
        begin_s = time.monotonic()
        try:
            for batch in batches:
                found.extend(check(batch))
                begin_s = time.monotonic()
        except Exception as error:  # noqa: BLE001 - the tests look at what it is
            result.append((error, time.monotonic() - begin_s))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(HANG_S / 2)
    assert result, f"neither an end nor an error within {HANG_S / 2} s; {len(found)} rows came"
    return found, *result[0]


@pytest.mark.parametrize("workers", [2, *more(1, 4)])
def test_a_dead_read_is_named_and_the_rows_before_it_are_delivered(shared_data: Data, dead: Dead, workers: int) -> None:
    """By file, row group and the line that the thread stands on."""
    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    dead.stuck = lambda path, group: path.endswith("part-2.parquet") and group == 2
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=workers, timeout=LIMIT_S)

    found, error, seconds = until_error(loader, shared_data.check)

    assert isinstance(error, Stalled), repr(error)
    assert isinstance(error, TimeoutError)
    assert f"{shared_data.files[1]}, row group 2" in str(error)
    assert "threading.py" in str(error), "the line it stands on: here, in Event.wait"
    assert error.silent_s >= LIMIT_S
    assert error.hint
    assert found == list(range(90 + 46))
    assert seconds < BOUND_S, f"{seconds:.1f} s after the last batch, with a limit of {LIMIT_S} s"


@pytest.mark.parametrize("workers", [3, *more(1)])
def test_a_dead_read_ends_a_shuffled_epoch(shared_data: Data, dead: Dead, workers: int) -> None:
    """The window that needs the dead group can never be complete."""
    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    dead.stuck = lambda path, group: path.endswith("part-2.parquet") and group == 2
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=workers, timeout=LIMIT_S, shuffle=True)

    _, error, seconds = until_error(loader, shared_data.check)

    assert isinstance(error, Stalled), repr(error)
    assert f"{shared_data.files[1]}, row group 2" in str(error)
    assert seconds < BOUND_S, f"{seconds:.1f} s, with a limit of {LIMIT_S} s"


def test_a_dead_disk_is_named_from_the_first_read_on(shared_data: Data, dead: Dead) -> None:
    """List columns are looked at before the first batch: this look is bounded like any other."""
    dataset = StreamingDataset(shared_data.path)
    dead.stuck = lambda _path, _group: True
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=2, timeout=LIMIT_S)

    found, error, seconds = until_error(loader, shared_data.check)

    assert isinstance(error, Stalled), repr(error)
    assert str(shared_data.files[0]) in str(error)
    assert found == []
    assert seconds < BOUND_S, f"{seconds:.1f} s, with a limit of {LIMIT_S} s"


def test_a_decoder_that_stops_in_the_middle_of_a_group_is_named(
    shared_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only opening can hang: here a piece never comes."""
    released, real = threading.Event(), Parquet.open

    class Stuck:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def pieces(self) -> Iterator[Any]:
            released.wait(HANG_S)
            yield from self._inner.pieces()

        def close(self) -> None:
            self._inner.close()

    def open_(self: Parquet, path: str, group: int, *rest: Any) -> Any:
        opened = real(self, path, group, *rest)
        return Stuck(opened) if path.endswith("part-10.parquet") else opened

    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    monkeypatch.setattr(Parquet, "open", open_)
    try:
        found, error, seconds = until_error(
            StreamingDataLoader(dataset, batch_size=1, num_workers=2, timeout=LIMIT_S), shared_data.check
        )
    finally:
        released.set()

    assert isinstance(error, Stalled), repr(error)
    assert f"decode {shared_data.files[2]}, row group 0" in str(error)
    assert found == list(range(193))
    assert seconds < BOUND_S, f"{seconds:.1f} s, with a limit of {LIMIT_S} s"


def test_a_slow_read_is_not_a_dead_one(shared_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is about progress: each of many slow steps is shorter than it, and all together are longer."""
    real = Parquet.open

    def open_(self: Parquet, *rest: Any) -> Any:
        threading.Event().wait(0.25)
        return real(self, *rest)

    dataset = StreamingDataset(shared_data.path, columns=["n"])
    monkeypatch.setattr(Parquet, "open", open_)
    loader = StreamingDataLoader(dataset, batch_size=1000, num_workers=1, timeout=3.0)

    begin_s = time.monotonic()
    shared_data.check_all(loader)
    assert time.monotonic() - begin_s > 3.0, "fourteen groups of 0.25 s each: longer than the limit"


def test_giving_up_an_epoch_does_not_wait_for_a_dead_disk(shared_data: Data, dead: Dead) -> None:
    """A break after the last batch that is wanted is no reason to wait for one that is not."""
    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    dead.stuck = lambda path, _group: path.endswith("part-2.parquet")
    iterator: Any = iter(StreamingDataLoader(dataset, batch_size=20, num_workers=2, prefetch_factor=9))
    next(iterator)
    assert dead.reached.wait(HANG_S / 2)

    begin_s = time.monotonic()
    del iterator

    assert time.monotonic() - begin_s < BOUND_S


def test_the_thread_of_a_dead_read_ends_when_the_read_returns(
    shared_data: Data, dead: Dead, our_threads: Callable[[], list[str]]
) -> None:
    """It was left behind, but not for ever; the check after every test sees to it."""
    dataset = StreamingDataset(shared_data.path, columns=["n", "label"])
    dead.stuck = lambda path, group: path.endswith("part-1.parquet") and group == 1
    loader = StreamingDataLoader(dataset, batch_size=1, num_workers=1, timeout=LIMIT_S)
    until_error(loader, shared_data.check)

    dead.released.set()

    for thread in threading.enumerate():
        if thread.name in our_threads():
            thread.join(HANG_S / 2)
    assert not our_threads()
    shared_data.check_all(loader)


EXIT = """
import sys, threading
import antifreeze as af
from antifreeze.formats import Parquet

real, reached = Parquet.open, threading.Event()

def open_(self, path, group, *rest):
    if group == 2:
        reached.set()
        threading.Event().wait(600)
    return real(self, path, group, *rest)

dataset = af.StreamingDataset(sys.argv[1], format="numpy", columns=["n"])
Parquet.open = open_
iterator = iter(af.StreamingDataLoader(dataset, batch_size=10, num_workers=2, timeout=0.3, prefetch_factor=4))
next(iterator)
reached.wait(60)
if sys.argv[2] == "stalled":
    try:
        list(iterator)
    except af.Stalled as error:
        print("stalled")
print("end", flush=True)
"""


@pytest.mark.parametrize("when", ["open", "stalled"])
def test_the_interpreter_ends_while_a_read_never_returns(shared_data: Data, when: str) -> None:
    """A thread in a dead file system cannot be ended, but the program can."""
    command = [sys.executable, "-W", "error", "-c", EXIT, str(shared_data.path), when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["stalled", "end"] if when == "stalled" else ["end"])
