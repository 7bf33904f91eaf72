"""Nulls and lengths: refused with the place they stand at, or filled."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from antifreeze.core import ConfigError, NullValue, RaggedColumn
from antifreeze.formats import Converter, PieceLocation

THERE = PieceLocation(file="train/part-7.parquet", row_group=3, first_row=100, file_row=4100)
I32 = pa.int32()
STRUCT = pa.struct([("x", I32), ("y", pa.string())])


def convert(arrow_type: pa.DataType, rows: list[Any], start: int = 0, **options: Any) -> dict[str, Any]:
    """Return the block of one column "c", of a slice of the rows."""
    batch = pa.record_batch({"c": pa.array(rows, arrow_type)}).slice(start)
    return Converter(batch.schema, **options)(batch, THERE)


def python(value: Any) -> Any:
    """Return lists of arrays as lists of lists."""
    return [python(part) for part in value] if isinstance(value, list | np.ndarray) else value


NULLS = {
    "scalar": (I32, [1, 2, None, 4]),
    "text": (pa.string(), ["a", "b", None, "c"]),
    "bool": (pa.bool_(), [True, False, None, True]),
    "dictionary": (pa.dictionary(I32, pa.string()), ["a", "b", None, "a"]),
    "list": (pa.list_(I32), [[1], [2], None, [3]]),
    "item": (pa.list_(I32), [[1], [], [2, None], [3]]),
    "fixed list": (pa.list_(I32, 2), [[1, 2], [3, 4], None, [5, 6]]),
    "fixed item": (pa.list_(I32, 2), [[1, 2], [3, 4], [5, None], [5, 6]]),
    "inner list": (pa.list_(pa.list_(I32)), [[[1]], [[2], []], [None], []]),
    "struct": (STRUCT, [{"x": 1, "y": "a"}, {"x": 1, "y": "a"}, None, {"x": 1, "y": "a"}]),
    "field": (STRUCT, [{"x": 1, "y": "a"}, {"x": 1, "y": "a"}, {"x": None, "y": "a"}, {"x": 1, "y": "a"}]),
    "map value": (pa.map_(pa.string(), I32), [[], [("a", 1)], [("b", None)], []]),
    "struct in a list": (pa.list_(STRUCT), [[], [{"x": 1, "y": "a"}], [None], []]),
    "null type": (pa.null(), [None]),
}


@pytest.mark.parametrize("name", NULLS)
@pytest.mark.parametrize("start", [0, 1])
def test_a_null_is_refused_with_its_place(name: str, start: int) -> None:
    """File, row group and row, counted from the start of the group and of the file."""
    arrow_type, rows = NULLS[name]
    start = min(start, len(rows) - 1)
    with pytest.raises(NullValue) as caught:
        convert(arrow_type, rows, start)

    index = min(2, len(rows) - 1) - start
    place = f"row {100 + index} of row group 3 (row {4100 + index} of the file) in train/part-7.parquet"
    assert f"null at {place}" in str(caught.value)
    assert f'fill_null={{"{caught.value.column}": ' in caught.value.hint
    assert (caught.value.row, caught.value.file) == (100 + index, "train/part-7.parquet")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301  (made just here)


FILLED = {
    "scalar": (I32, [1, None], 7, [1, 7]),
    "half": (pa.float16(), [np.float16(1), None], 7, [1.0, 7.0]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.5"), None], 0.25, [1.5, 0.25]),
    "text": (pa.string(), ["a", None], "", ["a", ""]),
    "bytes": (pa.binary(), [b"a", None], b"?", [b"a", b"?"]),
    "bool": (pa.bool_(), [True, None], False, [True, False]),
    "dictionary": (pa.dictionary(I32, pa.string()), ["a", None], "b", ["a", "b"]),
    "number from numpy": (I32, [1, None], np.int64(7), [1, 7]),
    "items": (pa.list_(I32), [[1, None], [None]], 7, [[1, 7], [7]]),
    "list": (pa.list_(I32), [[1], None, [2, 3]], 7, [[1], [], [2, 3]]),
    "list view": (pa.list_view(I32), [[1], None, [2, 3]], 7, [[1], [], [2, 3]]),
    "fixed list": (pa.list_(I32, 2), [[1, None], None, [2, 3]], 7, [[1, 7], [7, 7], [2, 3]]),
    "texts": (pa.list_(pa.string()), [["a", None], None], "?", [["a", "?"], []]),
    "map": (pa.map_(pa.string(), I32), [[("a", None)], None], 7, [[("a", 7)], []]),
    "null": (pa.null(), [None, None], 2.5, [2.5, 2.5]),
    "null as text": (pa.null(), [None], "x", ["x"]),
}


@pytest.mark.parametrize("name", FILLED)
@pytest.mark.parametrize("start", [0, 1])
def test_a_null_is_filled(name: str, start: int) -> None:
    """Values and items by the fill value, a null list by as many as its length, or none."""
    arrow_type, rows, fill, want = FILLED[name]

    assert python(convert(arrow_type, rows, start, fill_null={"c": fill})["c"]) == want[start:]


def test_a_null_list_of_a_recognised_length_is_all_fill() -> None:
    """A list column that was found to have one length is filled like one that has it by its type."""
    block = convert(pa.list_(I32), [[1, 2], None, [None, 3]], shapes={"c": (2,)}, fill_null=9)

    assert block["c"].tolist() == [[1, 2], [9, 9], [9, 3]]


def test_a_null_struct_fills_its_fields() -> None:
    """By the struct's name for all of them, by the dotted name for one."""
    rows = [{"x": 1, "y": "a"}, None]
    block = convert(STRUCT, rows, fill_null={"c": "?", "c.x": -1})

    assert (block["c.x"].tolist(), block["c.y"].tolist()) == ([1, -1], ["a", "?"])


def test_a_time_is_filled_by_a_time() -> None:
    """Of Python or of NumPy."""
    day = dt.datetime(2024, 5, 17)
    for fill in (day, np.datetime64(day)):
        block = convert(pa.timestamp("us"), [None, None], fill_null={"c": fill})
        assert block["c"].tolist() == [day, day]


def test_one_fill_for_all_leaves_out_what_cannot_hold_it() -> None:
    """So that fill_null=0 does not need a dataset without texts."""
    batch = pa.record_batch({"a": pa.array([None], I32), "b": pa.array(["x"])})

    assert Converter(batch.schema, fill_null=0)(batch, THERE)["a"].tolist() == [0]
    with pytest.raises(NullValue, match='column "c"'):
        convert(pa.string(), [None], fill_null=0)


@pytest.mark.parametrize(
    ("arrow_type", "fill"),
    [
        (I32, "x"),
        (I32, 0.5),
        (I32, float("nan")),
        (pa.int8(), 300),
        (pa.uint8(), -1),
        (pa.string(), 0),
        (pa.string(), b"x"),
        (pa.binary(), "x"),
        (pa.bool_(), 2),
        (pa.float32(), "x"),
        (pa.decimal128(5, 2), "x"),
        (pa.timestamp("us"), "x"),
        (pa.timestamp("us"), np.timedelta64(1, "s")),
        (pa.list_(I32), []),
    ],
)
def test_a_fill_value_of_a_wrong_type_is_refused_at_the_start(arrow_type: pa.DataType, fill: object) -> None:
    """Before anything is read, and without a silent change of the value."""
    with pytest.raises(ConfigError, match='is no value of column "c"'):
        Converter(pa.schema([("c", arrow_type)]), fill_null={"c": fill})


@pytest.mark.parametrize("start", [0, 2])
def test_a_row_of_another_length_is_named(start: int) -> None:
    """With both lengths and the way to allow it."""
    rows = [[1, 2], [3, 4], [5, 6], [7, 8, 9], [10]]
    with pytest.raises(RaggedColumn) as caught:
        convert(pa.list_(I32), rows, start, shapes={"c": (2,)})

    assert f'"c": expected length 2, got 3 at row {103 - start} of row group 3 (row {4103 - start}' in str(caught.value)
    assert "train/part-7.parquet" in str(caught.value)
    assert 'StreamingDataset(..., ragged=["c"])' in caught.value.hint


def test_lengths_that_add_up_are_still_told_apart() -> None:
    """One row too long and one too short have the right number of values together."""
    with pytest.raises(RaggedColumn, match="got 3 at row 100"):
        convert(pa.list_(I32), [[1, 2, 3], [4]], shapes={"c": (2,)})


def test_an_inner_list_of_another_length_is_named_by_its_row() -> None:
    """The row is that of the column, however deep the list."""
    rows = [[[1, 2], [3, 4]], [[5, 6], [7]]]
    with pytest.raises(RaggedColumn, match="got 1 at row 101"):
        convert(pa.list_(pa.list_(I32)), rows, shapes={"c": (2, 2)})


def test_a_shape_that_the_type_cannot_have_is_refused() -> None:
    """A shape has as many sides as the type has lists."""
    with pytest.raises(ConfigError, match=r'column "c" cannot have rows of shape \(2, 2\)'):
        Converter(pa.schema([("c", pa.list_(I32))]), shapes={"c": (2, 2)})
