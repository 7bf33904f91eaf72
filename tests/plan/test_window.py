"""Whatever is decoded in whatever order, memory stays bounded and somebody can always go on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antifreeze.plan import Flight, Limits, may_begin, may_decode

limits_of = st.builds(Limits, nbytes=st.integers(1, 50), rounds_ahead=st.integers(1, 4))


@given(limits_of, st.integers(1, 20), st.integers(1, 12), st.randoms(use_true_random=False))
def test_rounds_of_any_size_are_all_delivered_within_the_limit(
    limits: Limits, nbytes: int, rounds: int, rng: object
) -> None:
    """A consumer and threads that act at random times never get stuck, and hold no more than the limit."""
    begun, front, held = 0, 0, 0
    while front < rounds:
        flight = Flight(front=front, nbytes=held, starving=begun <= front)
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
def test_pieces_of_any_size_are_all_delivered_within_the_limit(limits: Limits, pieces: list[int], rng: object) -> None:
    """Two fragments are decoded at once and delivered one after the other; the second must not starve the first."""
    left = {0: list(pieces), 1: list(pieces)}
    ready: dict[int, list[int]] = {0: [], 1: []}
    front, held = 0, 0
    while front < 2:
        flight = Flight(front=front, nbytes=held, starving=not ready[front])
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
