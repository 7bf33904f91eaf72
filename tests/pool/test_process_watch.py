"""A fork server that does not answer is given time as long as it moves, is warned of, and then replaced."""

from __future__ import annotations

from typing import Any

import pytest

from antifreeze.diagnosis import (
    Counters,
    Finding,
    ProcSnapshot,
    loading_s,
    loading_still_s,
    loading_warn_s,
)
from antifreeze.pool import _process_watch
from antifreeze.pool._servers import Server

LOOK_S = 0.5


class Silent:
    """A process that moves, or does not, and a clock that advances by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit_s: float | None) -> None:
        self.now_s, self.cpu_s, self.moves = 1000.0, 0.0, False
        channel: Any = None  # it is not used
        self.limit_s, self.server = limit_s, Server("the fork server", channel, pid=7)
        monkeypatch.setattr(_process_watch.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(_process_watch, "read_counters", self.counters)
        monkeypatch.setattr(_process_watch, "read_proc", lambda _pid: ProcSnapshot(state="D", syscall="read"))

    def counters(self, _pid: int, *, alone: bool) -> Counters:
        assert alone  # what its workers do says nothing about it
        return Counters(state="D", cpu_s=self.cpu_s, moved_bytes=0, rss_nbytes=0)

    def watch(self, seconds: float, *, is_asked: bool = True) -> Finding | None:
        """Look on for a while; return what was found when it was called stuck."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.server.num_pending = int(is_asked)
            found = self.server.stall(self.limit_s)
            if found is not None:
                return found
            self.now_s += LOOK_S
            self.cpu_s += 0.1 * self.moves
        return None


@pytest.fixture(params=[None, 2.0, 20.0])
def silent(request: Any, monkeypatch: pytest.MonkeyPatch) -> Silent:
    return Silent(monkeypatch, request.param)


def test_one_that_stands_still_is_warned_of_once_and_then_replaced(
    silent: Silent, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning has the evidence; who reads the next message has read it."""
    still_s, warn_s = loading_still_s(silent.limit_s), loading_warn_s(silent.limit_s)
    assert silent.watch(warn_s) is None
    assert caplog.text == ""
    assert silent.watch(still_s - warn_s - 2 * LOOK_S) is None
    (warning,) = caplog.messages
    assert "no worker can be started" in warning
    assert "hint:" in warning

    found = silent.watch(5 * LOOK_S)
    assert found is not None
    assert "read" in "".join(found.evidence_lines)
    assert "it is replaced" in caplog.messages[-1]
    assert len(caplog.messages) == 2


def test_one_that_moves_has_more_time_but_not_for_ever(silent: Silent, caplog: pytest.LogCaptureFixture) -> None:
    """A cold disk, a large library; or a loop without an end."""
    silent.moves = True
    assert silent.watch(loading_s(silent.limit_s) - 2 * LOOK_S) is None
    assert caplog.text == ""
    assert silent.watch(5 * LOOK_S) is not None


def test_one_that_is_asked_nothing_may_stand_still(silent: Silent) -> None:
    """And when it is asked again, its time begins anew."""
    assert silent.watch(10_000, is_asked=False) is None
    assert silent.watch(loading_still_s(silent.limit_s) - LOOK_S) is None
    assert silent.watch(LOOK_S, is_asked=False) is None
    assert silent.watch(loading_still_s(silent.limit_s) - LOOK_S) is None


def test_it_is_not_blamed_for_a_time_in_which_nobody_looked(silent: Silent) -> None:
    """A laptop that slept."""
    for _ in range(3):
        assert silent.watch(loading_still_s(silent.limit_s) - LOOK_S) is None
        silent.now_s += 1000


def test_one_that_workers_can_do_without_is_not_said_to_hold_them_up(
    silent: Silent, caplog: pytest.LogCaptureFixture
) -> None:
    """It is ended, and not replaced."""
    silent.server.is_awaited = False
    assert silent.watch(loading_still_s(silent.limit_s) + 5 * LOOK_S) is not None

    assert "workers are started without it" in caplog.messages[0]
    assert "it is ended" in caplog.messages[-1]
