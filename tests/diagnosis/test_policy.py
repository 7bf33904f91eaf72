"""Who is killed and who is warned about, for every silence: tables for the rules, properties for all the rest."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.diagnosis._policy import (
    ENOUGH_SAMPLES,
    SLOWEST_FACTOR,
    STOPPED_S,
    USER_SLOWEST_FACTOR,
    Beat,
    decide,
    loading_s,
    loading_still_s,
    loading_warn_s,
    patience_s,
    warn_after_s,
)

DEFAULT = None
times = st.floats(0, 1e6)
limits_of = st.none() | st.floats(0.1, 1e4)
beats_of = st.builds(
    Beat,
    worker=st.integers(0, 9),
    silent_s=times,
    working=st.booleans(),
    stopped=st.booleans(),
    traced=st.booleans(),
    moves=st.booleans(),
    attempts=st.integers(0, 9),
    waiting_s=times,
    warned=st.integers(0, 5),
)


def beat(**facts: Any) -> Beat:
    return Beat(**{"worker": 0, "silent_s": 0.0, "working": True, **facts})


@pytest.mark.parametrize(
    ("facts", "slowest_s", "num_samples", "expected_s"),
    [
        ({}, 0.0, 0, 300),
        ({}, 1.0, 19, 300),
        ({}, 0.0, 20, 60),
        ({}, 1.0, 20, 60),
        ({}, 4.0, 20, 80),
        ({}, 100.0, 20, 2000),
        ({}, 100.0, 1, 2000),
        ({"moves": True}, 0.0, 0, 3000),
        ({"moves": True}, 0.0, 20, 600),
        ({"moves": True}, 4.0, 20, 800),
        ({"stopped": True}, 100.0, 20, 5),
        ({"stopped": True, "moves": True}, 0.0, 0, 5),
        ({"traced": True}, 0.0, 20, math.inf),
        ({"attempts": 1}, 0.0, 20, 180),
        ({"attempts": 2}, 0.0, 20, 540),
        ({"attempts": 3}, 0.0, 20, 1620),
        ({"attempts": 9}, 0.0, 20, 1620),
        ({"attempts": 1, "stopped": True}, 0.0, 20, 15),
    ],
)
def test_the_patience_of_the_default_rules(
    facts: dict[str, Any], slowest_s: float, num_samples: int, expected_s: float
) -> None:
    """The table of the module, number by number."""
    assert patience_s(DEFAULT, beat(**facts), slowest_s, num_samples) == expected_s


@pytest.mark.parametrize(
    ("facts", "slowest_s", "expected_s"),
    [
        ({}, 0.0, 8),
        ({}, 3.0, 8),
        ({}, 5.0, 10),
        ({"moves": True}, 0.0, 8),
        ({"stopped": True}, 0.0, 8),
        ({"traced": True}, 0.0, 8),
        ({"attempts": 1}, 5.0, 30),
        ({"attempts": 7}, 0.0, 216),
    ],
)
def test_the_limit_of_the_user_holds_whatever_the_process_does(
    facts: dict[str, Any], slowest_s: float, expected_s: float
) -> None:
    """Who sets a limit knows the data; only a sample that has worked before stretches it."""
    assert patience_s(8.0, beat(**facts), slowest_s, ENOUGH_SAMPLES) == expected_s


@pytest.mark.parametrize(
    ("limit_s", "silent_s", "waiting_s", "warned", "warns"),
    [
        (None, 9.9, 60.0, 0, False),
        (None, 10.0, 10.0, 0, True),
        (None, 50.0, 9.9, 0, False),
        (None, 50.0, 0.0, 0, False),
        (None, 50.0, 50.0, 1, False),
        (None, 100.0, 50.0, 1, True),
        (None, 299.0, 299.0, 2, False),
        (30.0, 9.9, 60.0, 0, False),
        (30.0, 10.0, 10.0, 0, True),
        (4.0, 2.0, 2.0, 0, True),
        (4.0, 1.9, 2.0, 0, False),
        (4.0, 4.0, 4.0, 1, False),
    ],
)
def test_a_warning_is_given_once_for_each_power_of_ten(
    limit_s: float | None, silent_s: float, waiting_s: float, warned: int, warns: bool
) -> None:
    """And only while somebody waits: who is not held up does not want to hear of it."""
    seen = beat(silent_s=silent_s, waiting_s=waiting_s, warned=warned)

    assert decide([seen], limit_s, 0.0, 0) == ([], [0] if warns else [])


def test_a_debugger_is_warned_about_and_never_killed_by_default() -> None:
    """Whoever debugs a worker would lose the session."""
    seen = beat(silent_s=1e9, waiting_s=1e9, traced=True)

    assert decide([seen], DEFAULT, 0.0, 20) == ([], [0])


def test_a_stopped_worker_is_killed_before_the_first_warning() -> None:
    """There is no work that takes its time."""
    assert decide([beat(silent_s=STOPPED_S + 0.1, stopped=True)], DEFAULT, 0.0, 0) == ([0], [])


def test_kills_come_before_warnings() -> None:
    """The cure must not wait until evidence is gathered for a message."""
    beats = [
        beat(worker=0, silent_s=50.0, waiting_s=50.0),
        beat(worker=1, silent_s=301.0),
        beat(worker=2, silent_s=20.0, waiting_s=50.0),
        beat(worker=3, silent_s=6.0, stopped=True),
    ]

    assert decide(beats, DEFAULT, 0.0, 0) == ([1, 3], [0, 2])


@given(st.lists(beats_of, max_size=8), limits_of, times, st.integers(0, 100))
def test_nobody_is_touched_without_need(
    beats: list[Beat], limit: float | None, slowest_s: float, num_samples: int
) -> None:
    """Not who is idle, not twice, and nobody who may still be at a sample like those that went well."""
    beats = [replace(seen, worker=worker) for worker, seen in enumerate(beats)]
    kill, warn = decide(beats, limit, slowest_s, num_samples)

    assert len({*kill, *warn}) == len(kill) + len(warn)
    assert all(beats[worker].working for worker in kill + warn)
    factor = SLOWEST_FACTOR if limit is None else USER_SLOWEST_FACTOR
    for seen in (beats[worker] for worker in kill):
        assert seen.silent_s > (STOPPED_S if seen.stopped else factor * slowest_s)
        assert seen.silent_s > (limit or STOPPED_S)
    for seen in (beats[worker] for worker in warn):
        assert min(seen.silent_s, seen.waiting_s) >= warn_after_s(limit)


@given(beats_of, limits_of, times, st.integers(0, 100), st.floats(0, 1e6))
def test_more_silence_never_saves_a_worker(
    seen: Beat, limit: float | None, slowest_s: float, num_samples: int, more_s: float
) -> None:
    """Who would be killed now would be killed later, too."""
    later = replace(seen, silent_s=seen.silent_s + more_s)

    if decide([seen], limit, slowest_s, num_samples).kill:
        assert decide([later], limit, slowest_s, num_samples) == ([seen.worker], [])


@given(beats_of, limits_of, times, st.integers(0, 100))
def test_every_silence_ends(seen: Beat, limit: float | None, slowest_s: float, num_samples: int) -> None:
    """A worker that stays silent is killed in the end, unless a debugger holds it: this is the promise."""
    limit_s = patience_s(limit, seen, slowest_s, num_samples)
    assert math.isinf(limit_s) == (seen.traced and limit is None)

    silent = replace(seen, working=True, silent_s=limit_s * 1.01 + 1)
    if not math.isinf(limit_s):
        assert decide([silent], limit, slowest_s, num_samples) == ([seen.worker], [])


@given(beats_of, limits_of, times, st.integers(0, 100))
def test_patience_grows_with_what_speaks_for_the_worker(
    seen: Beat, limit: float | None, slowest_s: float, num_samples: int
) -> None:
    """With attempts, with movement, with slower samples; and it is less only once more samples were seen."""
    limit_s = patience_s(limit, seen, slowest_s, num_samples)

    assert patience_s(limit, replace(seen, attempts=seen.attempts + 1), slowest_s, num_samples) >= limit_s
    assert patience_s(limit, replace(seen, moves=True), slowest_s, num_samples) >= limit_s
    assert patience_s(limit, seen, 2 * slowest_s, num_samples) >= limit_s
    assert patience_s(limit, seen, slowest_s, 0) >= limit_s


@pytest.mark.parametrize(
    ("limit_s", "still_s", "in_all_s", "warn_s"),
    [(None, 60, 300, 10), (0.5, 5, 30, 2.5), (2, 5, 30, 2.5), (8, 8, 80, 4), (60, 60, 600, 10)],
)
def test_a_process_that_imports_has_time_of_its_own(
    limit_s: float | None, still_s: float, in_all_s: float, warn_s: float
) -> None:
    """By default, and with a limit that was meant for samples."""
    limit = limit_s

    assert (loading_still_s(limit), loading_s(limit), loading_warn_s(limit)) == (still_s, in_all_s, warn_s)


@given(limit=limits_of)
def test_who_imports_is_warned_of_before_it_is_replaced(limit: float | None) -> None:
    """And who moves has more time than who does not."""
    assert loading_warn_s(limit) <= loading_still_s(limit) <= loading_s(limit)
