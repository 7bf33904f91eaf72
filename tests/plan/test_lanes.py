"""However an epoch is split between ranks, its global steps are made of the same samples, each of them once."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from test_order import every_row, planned

from antifreeze.plan import (
    EpochSteps,
    Interleaved,
    Lanes,
    Listed,
    Order,
    RankSlice,
    Sequential,
    Shuffling,
    apportion,
    default_lanes,
    interleaved,
    round_at,
    stretch,
    view_of_all,
)

TRIALS = settings(max_examples=2 * settings().max_examples)
fragment_sizes = st.lists(st.integers(1, 30), min_size=1, max_size=12)
kinds = st.sampled_from(["shuffled", "in order", "list"])
Row = tuple[int, int]


def order_of(kind: str, sizes: list[int], lanes: Lanes, *, seed: int, epoch: int, window: int, streams: int) -> Order:
    """Return an order of the kind, as the loader makes it."""
    view = view_of_all(sizes)
    if kind == "shuffled":
        return Interleaved(view, lanes, Shuffling(seed, epoch, window, streams))
    if kind == "list":
        rows = np.random.default_rng(seed).permutation(sum(sizes))
        return Listed(np.array(sizes), interleaved(rows, lanes), window)
    if len(lanes.numbers) == 1:
        return Sequential(view, lanes.total, lanes.first)
    return Interleaved(view, lanes, None, window_rows=window)


def rank_rows(order: Order, rank_slice: RankSlice, first: int) -> list[Row]:
    """Return what a rank delivers from a sample on, as the loader does it."""
    begin = rank_slice.read.position(first)
    at = order.start(round_at(order, begin))
    rows = planned(order)
    assert at <= begin
    return [row for position, row in enumerate(rows) if position >= begin and rank_slice.keeps(position)]


def global_steps(
    kind: str, sizes: list[int], lanes: int, world_size: int, steps: EpochSteps, **made_of: int
) -> list[set[Row]]:
    """Return the samples of each step, over all ranks, padding left out."""
    found: list[set[Row]] = [set() for _ in range(steps.number)]
    batch_size = steps.global_batch // world_size
    for rank in range(world_size):
        rank_slice = RankSlice((rank + steps.first) % world_size, world_size, lanes)
        rows = rank_rows(order_of(kind, sizes, rank_slice.read, **made_of), rank_slice, steps.first)  # type: ignore[arg-type]
        for step, batch in enumerate(_batches(rows, batch_size)):
            if step < len(found):
                assert not found[step] & set(batch)
                found[step] |= set(batch)
    return found


def _batches(rows: list[Row], size: int) -> list[list[Row]]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]


@TRIALS
@given(
    kinds,
    fragment_sizes,
    st.integers(1, 12),
    st.lists(st.integers(1, 8), min_size=2, max_size=2),
    st.integers(1, 5),
    st.integers(0, 3),
    st.integers(1, 40),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_a_change_of_ranks_does_not_change_a_step(
    kind: str,
    sizes: list[int],
    lanes: int,
    worlds: list[int],
    batch: int,
    epoch: int,
    window: int,
    streams: int,
    drop_last: bool,
    data: st.DataObject,
) -> None:
    """From any step on, with any other number of ranks whose batches together are as large."""
    global_batch = int(np.lcm(*worlds)) * batch
    made_of = {"seed": 5, "epoch": epoch, "window": window, "streams": streams}
    whole = EpochSteps(sum(sizes), global_batch, drop_last)
    one = global_steps(kind, sizes, lanes, worlds[0], whole, **made_of)
    stop = data.draw(st.integers(0, whole.number))
    rest = EpochSteps(sum(sizes), global_batch, drop_last, whole.after(stop))

    assert global_steps(kind, sizes, lanes, worlds[1], rest, **made_of) == one[stop:]
    seen = sorted(itertools.chain(*one))
    assert len(seen) == len(set(seen)) == (len(one) * global_batch if drop_last else sum(sizes))


@TRIALS
@given(kinds, fragment_sizes, st.integers(1, 8), st.integers(1, 8), st.integers(1, 40), st.integers(0, 400))
def test_every_sample_comes_once_whatever_the_shape_becomes(
    kind: str, sizes: list[int], lanes: int, world_size: int, window: int, first: int
) -> None:
    """Also from a sample on that is no multiple of anything, as after a change of the batch size."""
    made_of = {"seed": 1, "epoch": 0, "window": window, "streams": 2}
    alone = global_steps(kind, sizes, lanes, 1, EpochSteps(sum(sizes), 1, drop_last=False), **made_of)
    first = min(first, sum(sizes))
    rest = global_steps(kind, sizes, lanes, world_size, EpochSteps(sum(sizes), world_size, False, first), **made_of)

    assert [sorted(step) for step in rest] == [
        sorted(itertools.chain(*alone[i : i + world_size])) for i in range(first, sum(sizes), world_size)
    ]


@TRIALS
@given(fragment_sizes, st.integers(1, 9))
def test_lanes_hold_every_row_once_and_are_even(sizes: list[int], lanes: int) -> None:
    """They differ by one row at most."""
    found = [planned(Sequential(view_of_all(sizes), lanes, lane)) for lane in range(lanes)]

    assert list(itertools.chain(*found)) == every_row(sizes)
    assert [stop - start for start, stop in (stretch(sum(sizes), lanes, n) for n in range(lanes))] == [
        len(lane) for lane in found
    ]
    assert max(map(len, found)) - min(map(len, found)) <= 1


@TRIALS
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=16), st.data())
def test_streams_are_mixed_evenly(lengths: list[int], data: st.DataObject) -> None:
    """What is taken adds up, never shrinks, and no stream is ever more than two rows from its share."""
    taken = data.draw(st.integers(0, sum(lengths)))
    now, then = apportion(taken, lengths), apportion(min(taken + data.draw(st.integers(0, 5)), sum(lengths)), lengths)

    assert sum(now) == taken
    assert all(a <= b <= n for a, b, n in zip(now, then, lengths, strict=True))
    assert all(
        abs(a * sum(lengths) - taken * n) <= (len(lengths) + 1) * sum(lengths)
        for a, n in zip(now, lengths, strict=True)
    )


@TRIALS
@given(st.integers(1, 2000), st.integers(0, 10**7))
def test_the_default_lanes_can_be_divided_by_the_ranks(world_size: int, fragments: int) -> None:
    """And few row groups are not cut into many parts."""
    lanes = default_lanes(world_size, fragments)

    assert lanes % world_size == 0
    assert lanes == world_size or lanes * 16 <= fragments


def test_a_rank_reads_its_own_lanes_only() -> None:
    """Three ranks of six lanes read two each; four ranks share what they cannot divide."""
    assert [list(RankSlice(rank, 3, 6).read.numbers) for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [RankSlice(0, world_size, 6).every for world_size in (1, 2, 3, 6, 4, 12)] == [1, 1, 1, 1, 2, 2]
