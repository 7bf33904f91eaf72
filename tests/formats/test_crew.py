"""Many reads at a time end: with all results, with the first error, or with the name of what hangs."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.core import Stalled
from antifreeze.formats._thread_pool import DaemonThreadPool


def footers_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "antifreeze-footers"]


@settings(max_examples=30)
@given(count=st.integers(0, 100), threads=st.none() | st.integers(1, 5), bad=st.sets(st.integers(0, 99)))
def test_results_come_in_order_or_the_first_error_does(count: int, threads: int | None, bad: set[int]) -> None:
    def work(item: str) -> int:
        if int(item) in bad:
            raise ValueError(item)
        return int(item) * 2

    pool = DaemonThreadPool(work, [str(i) for i in range(count)], threads)
    first_bad = min((i for i in bad if i < count), default=None)
    if first_bad is None:
        assert pool.run() == [i * 2 for i in range(count)]
    else:
        with pytest.raises(ValueError, match=f"^{first_bad}$"):
            pool.run()
    assert not footers_threads()


def test_a_read_that_hangs_is_named() -> None:
    """And it does not keep the interpreter from ending: the threads are daemons."""
    release = threading.Event()

    def work(item: str) -> None:
        if item == "stuck":
            release.wait(timeout=60)

    pool: DaemonThreadPool[None] = DaemonThreadPool(work, [*map(str, range(40)), "stuck"], 2, stall_timeout_s=0.05)
    with pytest.raises(Stalled, match="waiting for stuck") as caught:
        pool.run()
    assert all(thread.daemon for thread in footers_threads())
    release.set()
    for thread in footers_threads():
        thread.join(timeout=60)

    assert caught.value.facts["files"] == ("stuck",)
    assert not footers_threads()


def test_the_crew_grows_only_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks are made up: here a chunk takes a hundred times longer than its work, or no longer."""

    class Clock:
        def __init__(self, idle: float) -> None:
            self.idle = idle
            self.local = threading.local()

        def thread_time(self) -> float:
            self.local.at = getattr(self.local, "at", 0.0) + 1.0
            return float(self.local.at)

        def monotonic(self) -> float:
            return float(getattr(self.local, "at", 0.0)) * (1.0 + self.idle)

    def threads_used(idle: float, meet: threading.Barrier | None) -> int:
        used: set[Any] = set()

        def work(item: str) -> None:
            used.add(threading.current_thread())
            # In two chunks: one thread alone would wait here for itself.
            if meet is not None and item in ("16", "32"):
                meet.wait(timeout=60)

        monkeypatch.setattr("antifreeze.formats._thread_pool.time", Clock(idle))
        DaemonThreadPool(work, list(map(str, range(200))), None).run()
        return len(used)

    assert threads_used(0.0, None) == 1
    assert threads_used(100.0, threading.Barrier(2)) > 1


def test_an_interrupt_stops_the_crew() -> None:
    done: list[str] = []

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    pool = DaemonThreadPool(done.append, [str(i) for i in range(100_000)], 1)
    with pytest.raises(KeyboardInterrupt):
        pool.run(interrupt)
    for thread in footers_threads():
        thread.join(timeout=60)

    assert len(done) < 100_000
