"""However the rows come, batches are full, in order, and copied only where they lie across blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.decode import Arrays, Rebatcher


def blocks_of(sizes: list[int]) -> list[Arrays]:
    ends = np.cumsum(sizes)
    return [Arrays({"n": np.arange(e - s, e)}, s) for s, e in zip(sizes, ends.tolist(), strict=True)]


def cut(sizes: list[int], batch_size: int, count: int | None = None) -> list[list[int]]:
    """Return the numbers of each batch; a batch that is made up has a 7."""
    cuts = Rebatcher(iter(blocks_of(sizes)), batch_size, count=count, spare=lambda: Arrays({"n": np.array([7])}, 1))
    return [block.columns["n"][start:stop].tolist() for block, start, stop in cuts]  # type: ignore[attr-defined]


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 40))
def test_batches_are_full_and_in_order(sizes: list[int], batch_size: int) -> None:
    """Every row once, in order; only the last batch may be short."""
    rows = list(range(sum(sizes)))

    assert cut(sizes, batch_size) == [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 40), st.integers(0, 50))
def test_there_are_as_many_batches_as_were_asked_for(sizes: list[int], batch_size: int, count: int) -> None:
    """No rank may have one more than others, or one less: it would wait for them, or they for it."""
    all_of_them = cut(sizes, batch_size)

    assert cut(sizes, batch_size, count) == (all_of_them + [[7]] * count)[:count]


def test_a_batch_within_a_block_is_not_copied() -> None:
    """Copying is a tenth of the cost of decoding."""
    (block,) = blocks_of([8])

    assert all(b is block for b, _, _ in Rebatcher(iter([block]), 4))
