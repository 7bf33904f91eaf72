"""Whatever the shape, every row is planned exactly once, and any round can be had on its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.plan import (
    Interleaved,
    Lanes,
    Listed,
    Order,
    RandomStream,
    Sequential,
    Shuffling,
    View,
    locate,
    permutation,
    view_of_all,
    view_of_range,
    view_of_rows,
)

fragment_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=12)


def planned(order: Order) -> list[tuple[int, int]]:
    """Return (fragment, row) for every position of an epoch, as an engine would deliver them."""
    out: list[tuple[int, int]] = []
    for k in range(order.num_rounds):
        rows = [
            order.view.locate(span.part, row)
            for task in order.tasks(k)
            for span in task.spans
            for row in range(span.start, span.stop)
        ]
        places = order.positions(k)
        assert len(rows) == len(places) == order.start(k + 1) - order.start(k)
        scattered: list[tuple[int, int]] = [(-1, -1)] * len(rows)
        for row, place in zip(rows, places.tolist(), strict=True):
            scattered[place] = row
        out.extend(scattered)
    return out


def shuffled(view: View, *, seed: int, epoch: int, window_rows: int, streams: int) -> Interleaved:
    """Return a shuffled epoch of one lane."""
    return Interleaved(view, Lanes(), Shuffling(seed, epoch, window_rows, streams))


def every_row(sizes: list[int]) -> list[tuple[int, int]]:
    return [(f, r) for f, n in enumerate(sizes) for r in range(n)]


@given(fragment_sizes, st.integers(0, 9), st.integers(0, 3), st.integers(1, 100), st.integers(1, 9))
def test_a_shuffled_epoch_delivers_each_row_once(
    sizes: list[int], seed: int, epoch: int, window: int, streams: int
) -> None:
    """Nothing is lost or repeated, whatever the sizes of fragments, window and number of streams."""
    order = shuffled(view_of_all(sizes), seed=seed, epoch=epoch, window_rows=window, streams=streams)

    assert sorted(planned(order)) == every_row(sizes)


@given(fragment_sizes, st.integers(1, 100), st.integers(1, 9))
def test_a_stream_is_read_front_to_back(sizes: list[int], window: int, streams: int) -> None:
    """A stream that jumped back would decode its fragment again; rounds only ever go on where the last one ended."""
    order = shuffled(view_of_all(sizes), seed=1, epoch=0, window_rows=window, streams=streams)
    at: dict[int, tuple[int, int]] = {}
    begun: set[int] = set()
    for k in range(order.num_rounds):
        for task in order.tasks(k):
            for span in task.spans:
                part, row = at.get(task.stream, (-1, 0))
                if span.part == part:
                    assert span.start == row
                else:
                    assert span.start == 0
                    assert span.part not in begun
                    begun.add(span.part)
                at[task.stream] = span.part, span.stop


@given(fragment_sizes, st.data())
def test_a_position_is_located_where_it_is_delivered(sizes: list[int], data: st.DataObject) -> None:
    """Messages name the row that was really delivered."""
    order = shuffled(view_of_all(sizes), seed=3, epoch=1, window_rows=17, streams=3)
    position = data.draw(st.integers(0, sum(sizes) - 1))

    assert locate(order, position) == planned(order)[position]


@given(fragment_sizes)
def test_a_sequential_epoch_is_the_order_of_the_files(sizes: list[int]) -> None:
    """Without shuffling, the order is the one a person sees in the files."""
    assert planned(Sequential(view_of_all(sizes))) == every_row(sizes)


@given(fragment_sizes, st.integers(0, 500), st.integers(0, 500))
def test_a_range_of_rows_is_that_range(sizes: list[int], start: int, stop: int) -> None:
    """Cutting a dataset cuts exactly there."""
    assert planned(Sequential(view_of_range(sizes, start, stop))) == every_row(sizes)[start : max(start, stop)]


@given(fragment_sizes, st.integers(1, 50), st.data())
def test_a_list_of_rows_keeps_its_order_and_repeats(sizes: list[int], window: int, data: st.DataObject) -> None:
    """A list is delivered as it is written, however wild it is."""
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=60))
    order = Listed(np.array(sizes), np.array(rows), window)

    assert planned(order) == [every_row(sizes)[i] for i in rows]


@given(fragment_sizes, st.data())
def test_an_ascending_list_is_a_view(sizes: list[int], data: st.DataObject) -> None:
    """An ascending list needs no dealing, and can be shuffled like any view."""
    rows = sorted(data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=60)))
    view = view_of_rows(sizes, np.array(rows))
    expected = [every_row(sizes)[i] for i in rows]

    assert planned(Sequential(view)) == expected
    assert sorted(planned(shuffled(view, seed=0, epoch=0, window_rows=7, streams=4))) == expected


@given(st.integers(0, 5000), st.integers(0, 2**70), st.integers(0, 99))
def test_a_permutation_is_one(size: int, seed: int, index: int) -> None:
    """Every number once, for any size and any seed, however large."""
    found = permutation(size, seed=seed, epoch=0, use=RandomStream.ROUND, index=index)

    assert np.array_equal(np.sort(found), np.arange(size))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"seed": 8}, False),
        ({"epoch": 1}, False),
        ({"index": 1}, False),
        ({"use": RandomStream.FRAGMENTS}, False),
    ],
)
def test_a_permutation_depends_on_every_argument(changed: dict[str, int], expected: bool) -> None:
    """The same arguments give the same order; any other gives another."""
    arguments = {"seed": 7, "epoch": 0, "use": RandomStream.ROUND, "index": 0}
    one = permutation(1000, **arguments)  # type: ignore[arg-type]
    two = permutation(1000, **(arguments | changed))  # type: ignore[arg-type]

    assert np.array_equal(one, two) is expected


def test_large_seeds_that_differ_by_one_give_other_orders() -> None:
    """Seeds are often hashes; rounding one would make runs alike that should differ."""
    one, two = (permutation(100, seed=2**64 - k, epoch=0, use=RandomStream.ROUND).tolist() for k in (1, 2))

    assert one != two


def test_a_permutation_is_the_same_on_every_machine_and_release() -> None:
    """A run that is resumed elsewhere must see the same order; this pins it."""
    assert permutation(8, seed=42, epoch=3, use=RandomStream.ROUND, index=5).tolist() == [6, 7, 4, 0, 3, 5, 2, 1]
