"""From a block to the user's batch, in NumPy; and from rows to a batch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from antifreeze.core import ConfigError, DataError, RaggedColumn, UnknownColumn
from antifreeze.datasets import collate, finisher, row_of
from antifreeze.formats import Converter, PieceLocation

I32 = pa.int32()


def finish(columns: dict[str, pa.Array], **options: Any) -> dict[str, Any]:
    """Return the finished batch of some columns."""
    batch = pa.record_batch(columns)
    convert = Converter(batch.schema)
    return finisher(convert.leaves, **options)(convert(batch, PieceLocation(file="a", row_group=0)))


def test_columns_keep_their_order_and_structs_are_nested() -> None:
    """Also when a struct stands between plain columns."""
    struct = pa.array([{"x": 1, "in": {"y": 2.5}}])
    batch = finish({"b": pa.array([1]), "s": struct, "a": pa.array(["t"])})

    assert list(batch) == ["b", "s", "a"]
    assert batch["s"]["in"]["y"].tolist() == [2.5]


@pytest.mark.parametrize(
    ("arrow_type", "rows", "pad", "want"),
    [
        (pa.list_(I32), [[1], [], [2, 3]], -1, [[1, -1], [-1, -1], [2, 3]]),
        (pa.list_(I32), [[], []], 0, [[], []]),
        (pa.list_(pa.list_(I32)), [[[1], [2, 3]], []], 0, [[[1, 0], [2, 3]], [[0, 0], [0, 0]]]),
        (pa.list_(pa.list_(I32, 2)), [[[1, 2]], []], 0, [[[1, 2]], [[0, 0]]]),
        (pa.list_(pa.bool_()), [[True], []], False, [[True], [False]]),
    ],
)
def test_padding_makes_one_array(arrow_type: pa.DataType, rows: list[Any], pad: object, want: list[Any]) -> None:
    """As long as the longest row, at every level; by name or for all."""
    for given in (pad, {"c": pad}):
        array = finish({"c": pa.array(rows, arrow_type)}, pad=given)["c"]
        assert array.tolist() == want


def test_padding_leaves_other_columns_alone() -> None:
    """A padded batch differs in its ragged columns only."""
    columns = {"a": pa.array([[1], [2, 3]]), "b": pa.array([[1], [2, 3]]), "t": pa.array([["x"], []])}
    batch = finish(columns, pad={"a": 0})

    assert batch["a"].shape == (2, 2)
    assert [len(row) for row in batch["b"]] == [1, 2]
    assert batch["t"] == [["x"], []]


def test_times_are_padded_by_times_or_ticks() -> None:
    """NaT is the natural one."""
    column = pa.array([[1], []], pa.list_(pa.timestamp("us")))

    assert np.isnat(finish({"c": column}, pad=np.datetime64("NaT"))["c"][1, 0])
    assert finish({"c": column}, pad=5)["c"].view(np.int64).tolist() == [[1], [5]]


@pytest.mark.parametrize("pad", [0.5, "x", 2**40, float("nan"), [0]])
def test_a_padding_that_the_column_cannot_hold_is_refused(pad: object) -> None:
    """At the start, with the column named."""
    with pytest.raises(ConfigError, match='is no value of column "c", whose values are int32'):
        finish({"c": pa.array([[1]], pa.list_(I32))}, pad=pad)


def test_a_padding_for_an_unknown_column_is_refused() -> None:
    """A misspelt name would otherwise do nothing."""
    with pytest.raises(UnknownColumn, match='pad names column "d"'):
        finish({"c": pa.array([[1]])}, pad={"d": 0})


COLUMNS = {
    "n": pa.array([1, 2], pa.int16()),
    "v": pa.array([[1, 2], [3, 4]], pa.list_(I32, 2)),
    "t": pa.array(["a", "b"]),
    "d": pa.array([1, 2], pa.timestamp("us")),
    "s": pa.array([{"x": 1, "m": {"y": 1.5}}, {"x": 2, "m": {"y": 2.5}}]),
}


def test_a_row_is_what_each_column_gives() -> None:
    """And structs are followed."""
    batch = finish(COLUMNS)
    row = row_of(batch, 1)

    assert list(row) == list(COLUMNS)
    assert row["n"] == np.int16(2)
    assert row["n"].dtype == np.int16
    assert (row["v"].tolist(), row["t"], row["s"]) == ([3, 4], "b", {"x": 2, "m": {"y": 2.5}})


def test_collating_all_rows_gives_the_batch() -> None:
    """The way back, with the same types."""
    batch = finish(COLUMNS)
    again = collate([row_of(batch, index) for index in range(2)])

    np.testing.assert_equal(again, batch)
    assert [getattr(again[key], "dtype", None) for key in again] == [
        getattr(batch[key], "dtype", None) for key in batch
    ]


def test_python_numbers_and_tuples_are_collated() -> None:
    """Rows made by the user's own code."""
    numbers, texts = collate([(1, "a"), (2, "b")])

    assert (numbers.tolist(), texts) == ([1, 2], ["a", "b"])
    assert collate([{"f": 0.5}, {"f": 1.5}])["f"].dtype == np.float64


def test_rows_of_different_shapes_are_named() -> None:
    """Key, shapes and positions."""
    rows = [{"s": {"v": np.zeros(2)}}, {"s": {"v": np.zeros(2)}}, {"s": {"v": np.zeros(3)}}]
    with pytest.raises(RaggedColumn, match=r'"s\.v" is \(2,\) in row 0 of the batch and \(3,\) in row 2'):
        collate(rows)


def test_rows_of_different_keys_are_named() -> None:
    """Instead of a bare KeyError."""
    with pytest.raises(DataError, match=r"row 0 has \['a'\], row 1 has \['b'\]"):
        collate([{"a": 1}, {"b": 1}])


def test_numpy_users_need_no_torch() -> None:
    """Workers that read Parquet must not pay for torch."""
    code = "import sys, antifreeze.datasets; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
