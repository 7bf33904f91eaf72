"""What may be in flight: pure rules that bound memory and still never wait for each other in a circle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Where an epoch stands."""

    front: int
    """The round that the consumer takes from."""
    nbytes: int
    """Decoded bytes that were not handed to the user yet."""
    starving: bool
    """Whether nothing of the front round is ready."""
    taken: float = 0.0
    """Which share of the front round's rows workers have been given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLimits:
    """What bounds an epoch."""

    nbytes: int
    rounds_ahead: int
    is_paced: bool = False
    """Whether the last of these rounds is decoded only as fast as workers take the rows of the front round."""


def may_begin(flight: InFlight, limits: FlightLimits, *, round_: int, nbytes: int) -> bool:
    """Whether a round that will hold ``nbytes`` may be begun now.

    Invariant: the front round may always begin. It is what the consumer waits for, so refusing it for lack of memory,
    while the memory is held by rounds behind it, would be a freeze by design.
    """
    if round_ <= flight.front:
        return True
    return round_ < flight.front + limits.rounds_ahead and flight.nbytes + nbytes <= limits.nbytes


def may_decode(flight: InFlight, limits: FlightLimits, *, round_: int, nbytes: int) -> bool:
    """Whether a further piece of ``nbytes`` of a round that was begun may be decoded now.

    Invariant: the front round may always go on while nothing of it is ready, for the same reason.
    """
    if round_ == flight.front and flight.starving:
        return True
    return flight.nbytes + nbytes <= limits.nbytes


_HEAD_START, _LEAD = 0.25, 1.25


def may_start(flight: InFlight, limits: FlightLimits, *, round_: int, done: float) -> bool:
    """Whether another task of a round that was begun may be started now; ``done`` is the share that was started before.

    User code takes far longer than decoding, so the next window would wait in memory, complete, for nearly as long as
    the front one lasts. Its last task is started when three fifths of the front round were given out, not earlier.

    Invariant: only the last round ahead is held back, and never the front round.
    """
    if not limits.is_paced or round_ < flight.front + max(1, limits.rounds_ahead - 1):
        return True
    return done < _HEAD_START + _LEAD * flight.taken
