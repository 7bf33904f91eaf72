"""Which list columns are recognised to have one shape."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from antifreeze.core import ColumnFacts
from antifreeze.formats import infer_shapes

I32 = pa.int32()


def infer(arrow_type: pa.DataType, rows: list[Any] | None, length: int | None) -> tuple[int, ...] | None:
    """Return the shape that is found for one column."""
    schema = pa.schema([("c", arrow_type)])
    facts = {"c": ColumnFacts(name="c", nbytes=0, values=0, length=length)}
    sample = None if rows is None else pa.record_batch({"c": pa.array(rows, arrow_type)})
    return infer_shapes(schema, facts, sample).get("c")


@pytest.mark.parametrize(
    ("arrow_type", "rows", "length", "want"),
    [
        (pa.list_(I32), [[1, 2], [3, 4]], 2, (2,)),
        (pa.large_list(pa.bool_()), [[True], [False]], 1, (1,)),
        (pa.list_view(I32), [[1, 2], [3, 4]], 2, (2,)),
        (pa.list_(pa.list_(I32)), [[[1, 2, 3], [4, 5, 6]]] * 2, 6, (2, 3)),
        (pa.list_(pa.list_(I32, 3)), [[[1, 2, 3], [4, 5, 6]]] * 2, 6, (2, 3)),
        (pa.list_(pa.timestamp("us")), [[1, 2]], 2, (2,)),
        (pa.list_(I32), [[1, 2], None], 2, (2,)),
        (pa.list_(I32), [], 2, (2,)),
        (pa.list_(I32), None, 2, (2,)),
        # What the footers and the sample do not both say is not taken for granted.
        (pa.list_(I32), [[1, 2], [3, 4]], None, None),
        (pa.list_(I32), [[1, 2], [3, 4]], 3, None),
        (pa.list_(I32), [[1, 2, 3], [4]], 2, None),
        (pa.list_(I32), [[], []], 1, None),
        (pa.list_(I32), [None, None], 1, None),
        (pa.list_(pa.list_(I32)), [[[1, 2], [3]], [[4, 5, 6]]], 3, None),
        (pa.list_(pa.list_(I32)), None, 6, None),
        # Nothing to find: no list, a fixed one, no numbers.
        (I32, [1, 2], 1, None),
        (pa.list_(I32, 2), [[1, 2]], 2, None),
        (pa.list_(pa.string()), [["a"]], 1, None),
        (pa.struct([("x", pa.list_(I32))]), [{"x": [1]}], 1, None),
    ],
)
def test_a_shape_is_recognised_if_footers_and_rows_agree(
    arrow_type: pa.DataType, rows: list[Any] | None, length: int | None, want: tuple[int, ...] | None
) -> None:
    """Footers know the number of values of all rows, the sample how some of them are cut."""
    assert infer(arrow_type, rows, length) == want
