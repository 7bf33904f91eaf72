"""The thread that speaks, with a real store and without other ranks: when it is there, and when it goes."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore, PrefixStore, TCPStore

import antifreeze as af
from antifreeze.core import Location
from antifreeze.distributed import RankStatus, watch_ranks
from antifreeze.distributed import _exchange as exchange_module
from antifreeze.distributed._record import RankRecord, encode, to_json
from antifreeze.distributed._store import JobStore, default_store, rank_key

PATIENCE_S = 60.0
OURS = ("antifreeze-ranks", "antifreeze-ranks-store")


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain until {what}"
        time.sleep(0.005)


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name in OURS)


class Group:
    """A process group as the thread sees it: rank 1 of 4, with a store."""

    def __init__(self, store: Any, world_size: int = 4) -> None:
        self.store, self.world_size = store, world_size
        self.distributed_c10d = SimpleNamespace(_get_default_store=lambda: self.store)

    def get_rank(self) -> int:
        return 1

    def get_world_size(self) -> int:
        return self.world_size

    def is_initialized(self) -> bool:
        return self.store is not None


@pytest.fixture
def store() -> Any:
    """A store in this process."""
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    return PrefixStore("default_pg", server)


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Group]]:
    """Make this process one of several ranks."""
    groups: list[Group] = []

    def make(store: Any, world_size: int = 4) -> Group:
        groups.append(Group(store, world_size))
        monkeypatch.setattr(
            exchange_module, "distributed_module", lambda: groups[-1] if groups[-1].is_initialized() else None
        )
        return groups[-1]

    yield make
    for group in groups:
        group.store = None
    until(lambda: not threads(), "the threads have ended")


class Loader:
    """Something that is iterated over."""

    def __init__(self, **facts: Any) -> None:
        self.now = RankStatus(0, 3, 0.0, 0.1)._replace(**facts)

    def standing(self) -> RankStatus:
        return self.now


def record_of(store: Any, rank: int = 1) -> dict[str, Any]:
    key = rank_key(rank)
    return json.loads(store.multi_get([key])[0]) if store.check([key]) else {}


# -- when it is there ----------------------------------------------------------------------------------------------


def test_without_a_process_group_there_is_no_thread() -> None:
    """Nor with one rank. A loader costs a look at a dictionary."""
    loader = Loader()
    with watch_ranks(loader, Loader.standing):
        assert threads() == []


def test_a_single_rank_writes_nothing(join: Any, store: Any) -> None:
    """There is nobody to read it."""
    join(store, world_size=1)
    before = store.num_keys()
    batches = [batch.tolist() for batch in af.DataLoader(list(range(8)), batch_size=2, num_workers=1)]

    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert store.num_keys() == before
    assert threads() == []


@pytest.mark.parametrize("kind", [HashStore, lambda: None, lambda: FileStore("store", 4)], ids=["hash", "none", "file"])
def test_a_store_that_cannot_be_reached_is_left_alone(
    join: Any, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file would grow with each record."""
    monkeypatch.chdir(tmp_path)
    group, loader = join(kind()), Loader()
    with watch_ranks(loader, Loader.standing):
        until(lambda: not threads(), "the thread has ended")

        assert default_store(group) is None


def test_a_loader_says_where_it_stands_and_that_it_has_ended(join: Any, store: Any) -> None:
    """The thread lives as long as somebody iterates; the last record says that it may be silent now."""
    join(store)
    loader = Loader(waited_s=1.0, place=Location("worker 1 (pid 9)", "fetch", "sample 3"))
    with watch_ranks(loader, Loader.standing):
        until(lambda: record_of(store).get("beat", 0) > 2, "it has told")
        said = record_of(store)
        alive = threads()
    until(lambda: not threads(), "the threads have ended")

    assert OURS[0] in alive
    assert said["active"]
    assert (said["rank"], said["pid"], said["step"], said["what"]) == (1, os.getpid(), 3, "sample 3")
    assert "active" not in record_of(store)
    assert len(store.multi_get([rank_key(1)])[0]) < 300


@pytest.mark.parametrize("num_workers", [0, 2])
def test_real_loaders_are_seen(join: Any, store: Any, num_workers: int) -> None:
    """With workers and without; each iteration while it lasts."""
    join(store)
    loader = af.DataLoader(list(range(40)), batch_size=2, num_workers=num_workers, stall_limit=7)
    seen = []
    for batch in loader:
        seen += batch.tolist()
        if len(seen) == 20:
            until(lambda: record_of(store).get("step") == 10, "the tenth batch is told")
            said = record_of(store)
    until(lambda: not threads(), "the threads have ended")

    assert seen == list(range(40))
    assert said["active"]
    assert (said.get("warn_s"), said.get("silent_s")) == ((3.5, 7) if num_workers else (None, None))
    assert "active" not in record_of(store)


def test_what_is_dropped_is_seen_no_more(join: Any, store: Any) -> None:
    """Frameworks keep neither iterators nor promises."""
    join(store)
    loader = Loader()
    watched = watch_ranks(loader, Loader.standing)
    until(lambda: record_of(store), "it has told")
    del loader
    gc.collect()
    until(lambda: not threads(), "the threads have ended")

    assert not watched.is_open
    assert watched.status() is None


def test_of_two_loaders_the_one_that_waits_is_told(join: Any, store: Any) -> None:
    """Validation runs in the middle of training."""
    join(store)
    train, validation = Loader(step=7, idle_s=100.0), Loader(step=1, idle_s=3.0, waited_s=3.0)
    with watch_ranks(train, Loader.standing), watch_ranks(validation, Loader.standing):
        until(lambda: record_of(store).get("step") == 1, "validation is told")
        validation.now = RankStatus(0, 2, 0.0, 0.1)
        until(lambda: record_of(store).get("step") == 2, "the loader that was used last is told")


def test_a_loader_that_cannot_say_where_it_stands_does_no_harm(join: Any, store: Any) -> None:
    """It is looked at while it goes on; what was known last is told."""
    join(store)
    loader = Loader()

    def standing(_: Loader) -> RankStatus:
        if loader.now.step > 3:
            raise KeyError("gone meanwhile")
        return loader.now

    with watch_ranks(loader, standing):
        until(lambda: record_of(store).get("step") == 3, "it has told")
        beat = record_of(store)["beat"]
        loader.now = loader.now._replace(step=4)
        until(lambda: record_of(store)["beat"] > beat + 2, "it tells on")

        assert record_of(store)["step"] == 3


def test_the_end_of_the_group_ends_the_thread(join: Any, store: Any) -> None:
    """And nobody holds its store: the server ends with its last owner. Another group begins anew."""
    group, loader = join(store), Loader()
    with watch_ranks(loader, Loader.standing):
        until(lambda: record_of(store), "it has told")
        group.store = None
        until(lambda: not threads(), "the threads have ended")
    join(PrefixStore("again", store.underlying_store))
    with watch_ranks(loader, Loader.standing):
        again = f"again/{rank_key(1)}"
        until(lambda: store.underlying_store.check([again]), "it tells the other group")


def test_a_group_that_follows_another_at_once_is_served(join: Any, store: Any) -> None:
    """The thread may not have noticed yet that the first one is gone when a loader begins in the second."""
    join(store)
    first, second = Loader(), Loader(step=8)
    with watch_ranks(first, Loader.standing):
        until(lambda: record_of(store), "it has told")
        other = PrefixStore("again", store.underlying_store)
        join(other)
        with watch_ranks(second, Loader.standing):
            until(lambda: record_of(other).get("active"), "it tells the other group")


def test_a_store_that_is_gone_ends_the_thread(join: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 has ended, and with it the store. It is not tried again, and nothing is raised or logged."""
    caplog.set_level(logging.INFO, "antifreeze")
    server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, None, False, wait_for_workers=False)
    join(client)
    loader = Loader()
    with watch_ranks(loader, Loader.standing):
        until(lambda: record_of(client), "it has told")
        del server
        until(lambda: not threads(), "the threads have ended")
        with watch_ranks(loader, Loader.standing):
            until(lambda: not threads(), "the thread of the second has ended")

    assert caplog.messages == []


def test_a_store_without_clone_gets_a_connection_of_its_own(store: Any) -> None:
    """As in older versions of torch."""

    class Old:
        underlying_store = store.underlying_store

    job_store = JobStore(Old)
    job_store.put("a", "1")

    assert job_store.fetch(["a", "b"]) == {"a": b"1"}
    assert store.underlying_store.get("a") == b"1"


# -- what it says --------------------------------------------------------------------------------------------------


def test_another_ranks_trouble_is_told_here(join: Any, store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Through the store, while our own loop waits in a collective."""
    join(store)
    trouble = RankRecord(
        rank=3, host="h", pid=5, active=True, number=1, worker="worker 0", what="sample 17", cause="lock"
    )
    store.set(rank_key(3), encode(to_json(trouble)))
    loader = Loader(idle_s=2.0)
    with watch_ranks(loader, Loader.standing):
        until(lambda: any("rank 3 of 4" in text for text in caplog.messages), "it is told")

    assert "worker 0 stalled at sample 17" in "".join(caplog.messages)


SERVER = """
import sys, time
from torch.distributed import TCPStore
server = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
print(server.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def foreign_store() -> Iterator[tuple[Any, subprocess.Popen[str]]]:
    """A store in another process, which can be stopped."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], **pipes) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield TCPStore("127.0.0.1", port, None, False, wait_for_workers=False), process
        process.send_signal(signal.SIGCONT)
        process.kill()


def test_a_stopped_store_is_named_and_found_again(
    join: Any, foreign_store: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that holds it is stopped: calls to it take for ever, and that is said."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    store, process = foreign_store
    join(store)
    loader = Loader(idle_s=2.0, silent_s=0.5)
    with watch_ranks(loader, Loader.standing):
        until(lambda: record_of(store), "it has told")
        process.send_signal(signal.SIGSTOP)
        until(lambda: caplog.messages, "it is named")
        process.send_signal(signal.SIGCONT)
        beat = record_of(store)["beat"]
        until(lambda: record_of(store)["beat"] > beat, "it tells again")

    assert "rank 0 of 4 (host 127.0.0.1) has been silent" in caplog.messages[0]
    assert "job's store (127.0.0.1:" in caplog.messages[0]


# -- fork and exit -------------------------------------------------------------------------------------------------

PROGRAM = """
import gc, logging, os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from test_exchange_thread import Group, Loader, OURS, record_of, until
from torch.distributed import TCPStore
from antifreeze.distributed import _exchange, watch_ranks

port, pid, case = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
group = Group(store)
_exchange.distributed_module = lambda: group
warnings = []
logging.getLogger("antifreeze").addFilter(lambda record: warnings.append(record.getMessage()))
loader = Loader(idle_s=2.0, silent_s=0.5)
watched = watch_ranks(loader, Loader.standing)
until(lambda: record_of(store), "it has told")
if case == "fork":
    child = os.fork()
    if not child:
        assert not [t for t in threading.enumerate() if t.name in OURS]
        watched.close()
        gc.collect()
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    beat = record_of(store)["beat"]
    until(lambda: record_of(store)["beat"] > beat, "the parent tells on")
if case == "stopped":
    os.kill(pid, signal.SIGSTOP)
    until(lambda: any("job's store" in text for text in warnings), "the thread waits for the store, and says so")
print("ends", flush=True)
"""


@pytest.mark.parametrize("case", ["exit", "fork", "stopped"])
def test_a_process_ends_whatever_the_thread_does(foreign_store: Any, case: str) -> None:
    """With an iterator that is still alive; after a fork; and while a call to the store does not return."""
    store, process = foreign_store
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(store.port), str(process.pid), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    process.send_signal(signal.SIGCONT)

    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
    assert "Fatal" not in done.stderr
    assert "active" not in record_of(store) or case == "stopped"


def test_a_trouble_of_a_real_worker_has_its_sample_and_its_cause(join: Any, store: Any, tmp_path: Path) -> None:
    """What the supervisor has found is what others read."""
    join(store)
    loader = af.DataLoader(Sleepy(tmp_path / "once"), batch_size=1, num_workers=1, stall_limit=2)
    found: list[dict[str, Any]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.05):
            said = record_of(store.clone())
            if said.get("number"):
                found.append(said)

    reader = threading.Thread(target=read)
    reader.start()
    seen = [batch.item() for batch in loader]
    stop.set()
    reader.join(PATIENCE_S)

    assert seen == list(range(6))
    said = found[0]
    assert (said["what"], said["stage"]) == ("sample 3 of Sleepy (batch 3)", "fetch")
    assert (said["cause"], said["title"]) == ("sleeping", "sleeps")
    assert "in __getitem__" in said["line"]
    assert said["worker"].startswith("worker 0 (pid ")


class Sleepy:
    """Stands still at its fourth sample, once."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> int:
        if i == 3 and not self.flag.exists():
            self.flag.touch()
            time.sleep(600)
        return i
