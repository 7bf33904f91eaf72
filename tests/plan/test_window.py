"""Whatever is decoded in whatever order, memory stays bounded and somebody can always go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antifreeze.plan import FlightLimits, InFlight, may_begin, may_decode, may_start

limits_of = st.builds(FlightLimits, nbytes=st.integers(1, 50), rounds_ahead=st.integers(1, 4))


@given(limits_of, st.integers(1, 20), st.integers(1, 12), st.randoms(use_true_random=False))
def test_rounds_of_any_size_are_all_delivered_within_the_limit(
    limits: FlightLimits, nbytes: int, rounds: int, rng: object
) -> None:
    """A consumer and threads that act at random times never get stuck, and hold no more than the limit."""
    begun, front, held = 0, 0, 0
    while front < rounds:
        flight = InFlight(front=front, nbytes=held, starving=begun <= front)
        begins = begun < rounds and may_begin(flight, limits, round_=begun, nbytes=nbytes)
        delivers = begun > front
        assert begins or delivers, "nobody can go on"
        if begins and (not delivers or rng.random() < 0.5):  # type: ignore[attr-defined]
            begun, held = begun + 1, held + nbytes
        else:
            front, held = front + 1, held - nbytes
        assert held <= max(limits.nbytes, nbytes)
        assert begun <= front + limits.rounds_ahead or begun == front + 1


@given(limits_of, st.lists(st.integers(1, 9), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_pieces_of_any_size_are_all_delivered_within_the_limit(
    limits: FlightLimits, pieces: list[int], rng: object
) -> None:
    """Two fragments are decoded at once and delivered one after the other; the second must not starve the first."""
    left = {0: list(pieces), 1: list(pieces)}
    ready: dict[int, list[int]] = {0: [], 1: []}
    front, held = 0, 0
    while front < 2:
        flight = InFlight(front=front, nbytes=held, starving=not ready[front])
        able = [r for r in left if left[r] and may_decode(flight, limits, round_=r, nbytes=left[r][0])]
        takes = bool(ready[front])
        ends = not left[front] and not ready[front]
        assert able or takes or ends, "nobody can go on"
        if ends:
            front += 1
        elif takes and (not able or rng.random() < 0.5):  # type: ignore[attr-defined]
            held -= ready[front].pop(0)
        else:
            round_ = rng.choice(able)  # type: ignore[attr-defined]
            ready[round_].append(left[round_].pop(0))
            held += ready[round_][-1]
        assert held <= limits.nbytes + max(pieces)


shares = st.floats(0, 1)


@given(front=st.integers(0, 9), ahead=st.integers(1, 5), behind=st.integers(0, 5), taken=shares, done=shares)
def test_only_the_last_round_ahead_is_held_back(front: int, ahead: int, behind: int, taken: float, done: float) -> None:
    """What workers wait for, or will ask for next of several rounds, is decoded at once."""
    flight = InFlight(front=front, nbytes=0, starving=True, taken=taken)
    paced, plain = (FlightLimits(nbytes=1, rounds_ahead=ahead, is_paced=is_paced) for is_paced in (True, False))
    round_ = front + min(behind, max(0, ahead - 2))

    assert may_start(flight, paced, round_=round_, done=done)
    assert may_start(flight, plain, round_=front + behind, done=done)


@given(taken=shares, done=shares)
def test_the_next_round_grows_as_the_front_round_shrinks(taken: float, done: float) -> None:
    """Both together never hold much more than one round, and the next one is complete before it is asked for."""
    flight, limits = (
        InFlight(front=3, nbytes=0, starving=False, taken=taken),
        FlightLimits(nbytes=1, rounds_ahead=2, is_paced=True),
    )

    if may_start(flight, limits, round_=4, done=done):
        assert (1 - taken) + done <= 1.5
    elif taken > 0.75:
        raise AssertionError("it would not be complete in time")
