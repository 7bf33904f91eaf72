"""However the rows come, batches are full, in order, and copied only where they lie across blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.loader import Cuts
from antifreeze.workers import Arrays


def blocks_of(sizes: list[int]) -> list[Arrays]:
    ends = np.cumsum(sizes)
    return [Arrays({"n": np.arange(e - s, e)}, s) for s, e in zip(sizes, ends.tolist(), strict=True)]


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 40), st.booleans())
def test_batches_are_full_and_in_order(sizes: list[int], batch_size: int, drop_last: bool) -> None:
    """Every row once, in order; only the last batch may be short, and it is dropped if that was asked for."""
    found = [b.columns["n"][i:j].tolist() for b, i, j in Cuts(iter(blocks_of(sizes)), batch_size, drop_last=drop_last)]
    rows = list(range(sum(sizes)))
    expected = [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]

    assert found == [batch for batch in expected if len(batch) == batch_size or not drop_last]


def test_a_batch_within_a_block_is_not_copied() -> None:
    """Copying is a tenth of the cost of decoding."""
    (block,) = blocks_of([8])

    assert all(b is block for b, _, _ in Cuts(iter([block]), 4, drop_last=False))
