"""The longest row of a nested column, found without decoding its values."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.formats._pages import LongestRow


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encoded(levels: list[int], bit_width: int, shortest_run: int = 8) -> bytes:
    """Return levels as runs: those of equal values that are long enough, and packed ones between them."""
    out, waiting = b"", []
    runs = [(value, len(list(group))) for value, group in groupby(levels)]
    for value, count in runs:
        missing = -len(waiting) % 8
        waiting += [value] * min(missing, count)
        count -= min(missing, count)
        if count >= shortest_run:
            out += packed(waiting, bit_width) + varint(count << 1) + value.to_bytes((bit_width + 7) // 8, "little")
            waiting = []
        else:
            waiting += [value] * count
    return out + packed(waiting, bit_width)


def packed(levels: list[int], bit_width: int) -> bytes:
    if not levels:
        return b""
    groups = -(-len(levels) // 8)
    number = sum(level << (i * bit_width) for i, level in enumerate(levels))
    return varint(groups << 1 | 1) + number.to_bytes(groups * bit_width, "little")


def longest(levels: list[int]) -> tuple[int, int]:
    """Return the length of the longest row, and of the longest stretch of packed values that could hide it."""
    rows = [0]
    for level in levels:
        rows = [*rows, 1] if level == 0 else [*rows[:-1], rows[-1] + 1]
    return max(rows), rows.index(max(rows)) - (rows[0] == 0)


rows = st.lists(st.integers(1, 40), min_size=1, max_size=60)
same = st.tuples(st.integers(1, 300), st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1])


@given(
    st.one_of(rows, same, st.tuples(same, rows, same).map(lambda parts: [*parts[0], *parts[1], *parts[2]])),
    st.integers(1, 3),
    st.data(),
)
def test_the_longest_row_is_never_underestimated(lengths: list[int], bit_width: int, data: st.DataObject) -> None:
    """Whatever the runs are, and wherever pages end."""
    levels = [0 if i == 0 else 1 + i % ((1 << bit_width) - 1) for length in lengths for i in range(length)]
    found, shortest = LongestRow(), data.draw(st.sampled_from([1, 8, 10**9]))
    while levels:
        count = data.draw(st.integers(1, len(levels)))
        found.add(memoryview(encoded(levels[:count], bit_width, shortest)), bit_width, count)
        levels = levels[count:]

    assert found.num_values >= max(lengths)
    if shortest == 8 and bit_width == 1:
        assert found.num_values <= max(lengths) + 512


@pytest.mark.parametrize("length", [8, 24, 1024, 1000])
def test_lists_of_one_length_are_found_exactly_or_nearly(length: int) -> None:
    """The common case, whose runs repeat."""
    levels = [0, *[1] * (length - 1)] * 5000
    found = LongestRow()
    for begin in range(0, len(levels), 70_000):
        page = levels[begin : begin + 70_000]
        found.add(memoryview(encoded(page, 1)), 1, len(page))

    assert length <= found.num_values <= max(length, 512)
    assert found._rows == 5000


def test_one_long_row_among_short_ones_is_found() -> None:
    """Also if it is longer than a page, and its pages are all alike."""
    levels = [0, 1, 1] * 1000 + [0, *[1] * 100_000] + [0, 1, 1] * 1000
    found = LongestRow()
    for begin in range(0, len(levels), 3000):
        page = levels[begin : begin + 3000]
        found.add(memoryview(encoded(page, 1)), 1, len(page))

    assert found.num_values == 100_001
    assert found.row == 1000


def test_runs_without_the_beginning_of_a_row_add_up() -> None:
    """Repeated runs are passed over, and count."""
    run = varint(16 << 1) + b"\1"
    found = LongestRow()
    found.add(memoryview(b"\3\xfe" + run * 10_000), 1, 8 + 160_000)

    assert found.num_values == 160_008


@pytest.mark.parametrize("data", [b"", b"\x03", b"\xff", b"\xff" * 20, b"\0\0", b"\x02", b"\x10"])
def test_levels_that_end_too_early_are_refused(data: bytes) -> None:
    """Damage is an error, and never an endless loop."""
    with pytest.raises(ValueError, match=r"end|bits"):
        LongestRow().add(memoryview(data), 1, 1000)
