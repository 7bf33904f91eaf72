"""A mixture has each row once, in the shares that were asked for, and can be split between ranks like one dataset."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.plan import BLOCK_GROUPS, Lanes, Mix

TRIALS = settings(max_examples=2 * settings().max_examples)
sizes_of = st.lists(st.integers(0, 400), min_size=1, max_size=4)
Row = tuple[int, int]


def delivered(mix: Mix, lanes: Lanes, *, seed: int = 3, epoch: int = 1) -> list[Row]:
    """Return (dataset, row) for each sample of some lanes, as an engine would deliver them."""
    out: list[Row] = []
    count = len(lanes.numbers)
    for block in range(-(-mix.num_groups // BLOCK_GROUPS)):
        first = block * BLOCK_GROUPS
        before, after = mix.taken(first), mix.taken(min(first + BLOCK_GROUPS, mix.num_groups))
        given_rows = [
            (dataset, (number // count) * mix.lanes + lanes.numbers[number % count])
            for dataset in range(len(mix.sizes))
            for number in range(before[dataset] * count, after[dataset] * count)
        ]
        sources = mix.sources(block, lanes, seed=seed, epoch=epoch)
        assert sorted(sources.tolist()) == list(range(len(given_rows)))
        out.extend(given_rows[source] for source in sources.tolist())
    first = mix.num_groups * mix.lanes
    out.extend(row for t, row in enumerate(mix.tail) if (first + t) % mix.lanes in lanes.numbers)
    return out


@TRIALS
@given(sizes_of, st.integers(1, 8), st.data())
def test_all_of_them_means_each_row_once(sizes: list[int], lanes: int, data: st.DataObject) -> None:
    """Whatever the weights are, and whether they change."""
    weights = data.draw(st.lists(st.floats(0, 10), min_size=len(sizes), max_size=len(sizes)))
    changing = data.draw(st.booleans())
    mix = Mix(
        sizes,
        lanes,
        (lambda group: weights[::-1] if group % 128 else weights) if changing else weights,
        all_of_them=True,
    )

    assert sorted(delivered(mix, Lanes(lanes))) == [(d, row) for d, size in enumerate(sizes) for row in range(size)]
    assert mix.num_rows == sum(sizes)


@TRIALS
@given(sizes_of, st.sampled_from([(6, 1), (6, 2), (6, 3), (4, 2), (1, 1)]), st.booleans())
def test_lanes_of_a_mixture_do_not_depend_on_who_reads_them(
    sizes: list[int], shape: tuple[int, int], whole: bool
) -> None:
    """A sample of the epoch is the same row, however many ranks there are."""
    lanes, ranks = shape
    mix = Mix(sizes, lanes, [1.0] * len(sizes), all_of_them=whole)
    alone = delivered(mix, Lanes(lanes))
    found: dict[int, Row] = {}
    for rank in range(ranks):
        mine = Lanes(lanes, rank, ranks)
        found |= {mine.sample(position): row for position, row in enumerate(delivered(mix, mine))}

    assert [found[sample] for sample in range(len(alone))] == alone


def test_the_first_that_ends_ends_the_epoch() -> None:
    """With equal weights, twice the shorter one."""
    mix = Mix([100, 1000], 1, [1, 1], all_of_them=False)

    assert mix.num_rows in (200, 201)
    assert [row for d, row in sorted(delivered(mix, Lanes())) if d == 0] == list(range(100))


@TRIALS
@given(st.integers(1, 8))
def test_shares_hold_in_every_stretch(lanes: int) -> None:
    """Not only over the epoch: a batch should be what the weights say, too."""
    mix = Mix([80_000, 80_000, 80_000], lanes, [0.7, 0.2, 0.1], all_of_them=False)
    picks = np.array([d for d, _ in delivered(mix, Lanes(lanes))])
    for start in range(0, len(picks) - 640 * lanes, 6400 * lanes):
        share = np.bincount(picks[start : start + 640 * lanes], minlength=3) / (640 * lanes)
        assert np.abs(share - [0.7, 0.2, 0.1]).max() < 0.04


def test_weights_that_change_are_followed() -> None:
    """From one dataset to the other, in a straight line."""
    mix = Mix([100_000, 100_000], 2, lambda group: (1 - group / 30_000, group / 30_000), all_of_them=False)
    picks = np.array([d for d, _ in delivered(mix, Lanes(2))])[: 2 * 30_000]
    shares = [float(picks[i : i + 6000].mean()) for i in range(0, 60_000, 6000)]

    assert np.allclose(shares, np.arange(0.05, 1, 0.1), atol=0.02)


def test_a_small_share_is_not_rounded_away() -> None:
    """One in a thousand is less than one of each block."""
    mix = Mix([10**6, 10**6], 1, lambda _: (0.999, 0.001), all_of_them=False)

    assert abs(mix.taken(BLOCK_GROUPS * 5000)[1] - BLOCK_GROUPS * 5) < 5


def test_a_billion_rows_are_planned_at_once() -> None:
    """Nothing of the size of the data exists."""
    mix = Mix([10**9, 2 * 10**9], 8, [1.0, 2.0], all_of_them=True)

    assert len(mix.eras) < 5
    assert list(itertools.accumulate(mix.taken(3 * 10**8 // BLOCK_GROUPS * BLOCK_GROUPS)))[-1] == 3 * 10**8 // 64 * 64
