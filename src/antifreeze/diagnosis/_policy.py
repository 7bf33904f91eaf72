"""What to do about silent workers: rules without a clock, a process or a lock.

A worker is silent while it has work and its board record does not move. Idle workers, and those whose finished batch
waits for the trainer, are never touched.

| the silent worker ...                     | is killed after             | with a limit L of the user |
|-------------------------------------------|-----------------------------|----------------------------|
| is stopped                                | 5 s                         | L                          |
| is held by a debugger                     | never                       | L                          |
| does not move, fewer than 20 samples seen | 300 s                       | L                          |
| does not move, 20 samples seen            | 60 s                        | L                          |
| uses CPU or moves bytes                   | ten times that              | L                          |
| and, unless stopped, never before         | 20 times the slowest sample | 2 times the slowest sample |
| for each worker that its task has cost    | times 3, up to 27           | times 3, up to 27          |

A warning is given when the trainer has waited for 10 s and the worker has been silent for as long (for half of L, if L
is below 20 s), and again each time the silence has grown tenfold.

Imports are known to be slow. A process that imports may make no progress for 60 s (with a limit of the user, for L, and
5 s at least), and take 300 s in all (ten times L, and 30 s at least).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

STOPPED_S = 5.0
"""How long a worker may be stopped: it is no work that takes its time."""
FIRST_S = 300.0
"""How long a worker may make no progress while little is known of the dataset."""
LATER_S = 60.0
"""How long it may make no progress once the samples have shown how long they take."""
ENOUGH_SAMPLES = 20
"""After this many samples, their slowest says something of the next."""
SLOWEST_FACTOR = 20
"""A sample may take this many times as long as the slowest before it."""
MOVING_FACTOR = 10
"""A worker that makes progress may take this many times as long: slow is not stuck."""
USER_SLOWEST_FACTOR = 2
"""The limit of the user is stretched to this many times the slowest sample: what has worked once is not a stall."""
ATTEMPT_FACTOR = 3.0
"""Patience grows by this with each worker that the task has cost: maybe it is only slow."""
MAX_ATTEMPTS = 3
"""It grows no more after this many."""
LOADING_S = 300.0
"""How long a process may import and rebuild, as long as it moves."""
LEAST_LOADING_S, LOADING_FACTOR = 30.0, 10
"""The same with a limit of the user: this many times the limit, and at least the minimum."""
WARN_S = 10.0
"""How long the trainer waits before a warning says why."""
WARN_FACTOR = 10
"""The next warning comes when the silence has grown by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One worker, as it was seen last."""

    worker: int
    silent_s: float
    """Since its record last moved."""
    working: bool
    """False: it is idle, or waits for the trainer to take a result."""
    stopped: bool = False
    """State T."""
    traced: bool = False
    """State t: a debugger holds it."""
    moves: bool = False
    """True if its process has used CPU or moved bytes in the last second or so."""
    attempts: int = 0
    """How many workers its task has cost before."""
    waiting_s: float = 0.0
    """How long the trainer has waited for a batch; 0 when it does not wait."""
    warned: int = 0
    """How many warnings were given about this silence."""


class Decision(NamedTuple):
    """Which workers to kill, and issue their tasks again; and of which to log what is known."""

    kill: list[int]
    warn: list[int]


def patience_s(limit_s: float | None, beat: Beat, slowest_s: float, num_samples: int) -> float:
    """Return how long this worker may be silent. ``slowest_s`` is the slowest sample so far, 0 if there is none."""
    factor = ATTEMPT_FACTOR ** min(beat.attempts, MAX_ATTEMPTS)
    if limit_s is not None:
        return max(limit_s, USER_SLOWEST_FACTOR * slowest_s) * factor
    if beat.traced:
        return math.inf
    if beat.stopped:
        return STOPPED_S * factor
    still_s = max(LATER_S if num_samples >= ENOUGH_SAMPLES else FIRST_S, SLOWEST_FACTOR * slowest_s)
    return still_s * (MOVING_FACTOR if beat.moves else 1) * factor


def loading_s(limit_s: float | None) -> float:
    """Return how long a process may import and rebuild what it needs, as long as it moves."""
    return LOADING_S if limit_s is None else max(LEAST_LOADING_S, LOADING_FACTOR * limit_s)


def loading_still_s(limit_s: float | None, *, runs_user_code: bool = False) -> float:
    """Return how long a process that imports or loads may make no progress.

    Libraries alone are imported in seconds or not at all. What user code takes is for the user's limit to say.
    """
    return LATER_S if limit_s is None else limit_s if runs_user_code else max(STOPPED_S, limit_s)


def loading_warn_s(limit_s: float | None) -> float:
    """Return how long such a process makes no progress before a warning: on a busy machine, a moment is nothing."""
    return max(warn_after_s(limit_s), STOPPED_S / 2)


def warn_after_s(limit_s: float | None) -> float:
    """Return how long the trainer waits before a warning says why."""
    return WARN_S if limit_s is None or limit_s >= 2 * WARN_S else limit_s / 2


def decide(beats: Iterable[Beat], limit_s: float | None, slowest_s: float, num_samples: int) -> Decision:
    """Return what to do about silent workers. ``slowest_s`` is the slowest sample so far, 0 if there is none."""
    decision, warn_s = Decision([], []), warn_after_s(limit_s)
    for beat in beats:
        if not beat.working:
            continue
        if beat.silent_s > patience_s(limit_s, beat, slowest_s, num_samples):
            decision.kill.append(beat.worker)
        elif beat.waiting_s >= warn_s and beat.silent_s >= warn_s * float(WARN_FACTOR) ** beat.warned:
            decision.warn.append(beat.worker)
    return decision
