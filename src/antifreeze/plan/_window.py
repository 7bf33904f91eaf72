"""What may be in flight: pure rules that bound memory and still never wait for each other in a circle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Where an epoch stands."""

    front: int
    """The round that the consumer takes from."""
    nbytes: int
    """Decoded bytes that were not handed to the user yet."""
    starving: bool
    """Whether nothing of the front round is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds an epoch."""

    nbytes: int
    rounds_ahead: int


def may_begin(flight: Flight, limits: Limits, *, round_: int, nbytes: int) -> bool:
    """Whether a round that will hold ``nbytes`` may be begun now.

    Invariant: the front round may always begin. It is what the consumer waits for, so refusing it for lack of memory,
    while the memory is held by rounds behind it, would be a freeze by design.
    """
    if round_ <= flight.front:
        return True
    return round_ < flight.front + limits.rounds_ahead and flight.nbytes + nbytes <= limits.nbytes


def may_decode(flight: Flight, limits: Limits, *, round_: int, nbytes: int) -> bool:
    """Whether a further piece of ``nbytes`` of a round that was begun may be decoded now.

    Invariant: the front round may always go on while nothing of it is ready, for the same reason.
    """
    if round_ == flight.front and flight.starving:
        return True
    return flight.nbytes + nbytes <= limits.nbytes
