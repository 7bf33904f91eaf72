"""What may be in flight: pure rules that bound memory and cannot deadlock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The state of an epoch."""

    front: int
    """The round that the consumer reads from."""
    nbytes: int
    """Decoded bytes that were not delivered yet."""
    starving: bool
    """Whether nothing of the front round is ready."""
    taken: float = 0.0
    """Fraction of the front round's rows that were sent to workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLimits:
    """The limits of an epoch."""

    nbytes: int
    rounds_ahead: int
    is_paced: bool = False
    """Whether the last of these rounds is decoded only as fast as workers consume the front round."""


def may_begin(flight: InFlight, limits: FlightLimits, *, round_: int, nbytes: int) -> bool:
    """Return True if a round of ``nbytes`` may be started now.

    Invariant: the front round may always start. The consumer waits for it, so rejecting it for lack of memory, while
    later rounds hold the memory, would be a deadlock by design.
    """
    if round_ <= flight.front:
        return True
    return round_ < flight.front + limits.rounds_ahead and flight.nbytes + nbytes <= limits.nbytes


def may_decode(flight: InFlight, limits: FlightLimits, *, round_: int, nbytes: int) -> bool:
    """Return True if another piece of ``nbytes`` of a started round may be decoded now.

    Invariant: the front round may always continue while nothing of it is ready, for the same reason.
    """
    if round_ == flight.front and flight.starving:
        return True
    return flight.nbytes + nbytes <= limits.nbytes


_HEAD_START, _LEAD = 0.25, 1.25


def may_start(flight: InFlight, limits: FlightLimits, *, round_: int, done: float) -> bool:
    """Return True if another task of a started round may start now; ``done`` is the fraction started before.

    User code takes far longer than decoding, so the next window would wait in memory, complete, for nearly as long as
    the front one lasts. Its last task starts when three fifths of the front round were sent to workers, not earlier.

    Invariant: only the last round ahead is held back, and never the front round.
    """
    if not limits.is_paced or round_ < flight.front + max(1, limits.rounds_ahead - 1):
        return True
    return done < _HEAD_START + _LEAD * flight.taken
