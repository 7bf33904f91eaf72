"""Record batches as they may come: slices, empty ones, other orders, damaged values."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.core import DataError, SchemaMismatch, UnknownColumn
from antifreeze.datasets import finisher
from antifreeze.formats import Converter, PieceLocation

HERE = PieceLocation(file="part.parquet", row_group=0)


def from_file(column: pa.Array) -> pa.RecordBatch:
    """Return the column as it comes back from a file."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": column}), sink)
    return next(pq.ParquetFile(sink).iter_batches())


def python(value: Any) -> Any:
    """Return lists of arrays as lists of lists."""
    return [python(part) for part in value] if isinstance(value, list | np.ndarray) else value


nested = st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), data=st.data())
def test_nullable_integers_come_back_filled(rows: list[int | None], data: st.DataObject) -> None:
    """Whatever part of a batch is converted."""
    start = data.draw(st.integers(0, len(rows) - 1))
    batch = from_file(pa.array(rows, pa.int32()))
    batch = batch.slice(start)
    values = Converter(batch.schema, fill_null=-1)(batch, HERE)["c"]

    assert values.dtype == np.int32
    assert values.tolist() == [-1 if row is None else row for row in rows[start:]]


@settings(deadline=None, max_examples=60)
@given(rows=nested, data=st.data(), wide=st.booleans())
def test_nested_lists_come_back_from_any_slice(rows: list[Any], data: st.DataObject, wide: bool) -> None:
    """A slice of a batch shares its children with the whole; only its own may come out."""
    make = pa.large_list if wide else pa.list_
    start = data.draw(st.integers(0, len(rows)))
    batch = from_file(pa.array(rows, make(make(pa.int16()))))
    batch = batch.slice(start)

    assert python(Converter(batch.schema)(batch, HERE)["c"]) == rows[start:]


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.booleans(), min_size=1, max_size=70), data=st.data())
def test_bits_come_back_from_any_slice(rows: list[bool], data: st.DataObject) -> None:
    """Arrow packs eight to a byte, so a slice may begin inside one."""
    start = data.draw(st.integers(0, len(rows)))
    batch = pa.record_batch({"c": pa.array(rows)}).slice(start)

    assert Converter(batch.schema)(batch, HERE)["c"].tolist() == rows[start:]


@settings(deadline=None, max_examples=100)
@given(
    digits=st.lists(st.integers(-(10**38) + 1, 10**38 - 1) | st.integers(-(10**16), 10**16), min_size=1),
    scale=st.integers(0, 38),
)
def test_a_decimal_becomes_the_nearest_float(digits: list[int], scale: int) -> None:
    """Arrow's own cast is off by a bit for some; Python's is exact."""
    rows = [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in digits]
    batch = pa.record_batch({"c": pa.array(rows, pa.decimal128(38, scale))})

    assert Converter(batch.schema)(batch, HERE)["c"].tolist() == [float(row) for row in rows]


def test_no_rows_give_empty_arrays() -> None:
    """An empty piece has the same leaves as a full one."""
    schema = pa.schema(
        [("a", pa.int32()), ("b", pa.list_(pa.int32())), ("c", pa.list_(pa.int32(), 3)), ("d", pa.bool_())]
    )
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    block = Converter(schema, shapes={"b": (4,)})(batch, HERE)

    assert [value.shape for value in block.values()] == [(0,), (0, 4), (0, 3), (0,)]


def test_a_struct_and_a_column_may_have_the_same_dotted_name() -> None:
    """Both are delivered, and each under its own name."""
    batch = pa.record_batch({"s": pa.array([{"x": 1}]), "s.x": pa.array([2])})
    convert = Converter(batch.schema)

    finished = finisher(convert.leaves)(convert(batch, HERE))

    assert finished["s"]["x"].tolist() == [1]
    assert finished["s.x"].tolist() == [2]


def test_a_batch_in_another_order_is_matched_by_name() -> None:
    """Files of one dataset may have been written by different programs."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    batch = pa.record_batch({"b": pa.array(["x"]), "a": pa.array([1])})
    block = Converter(schema)(batch, HERE)

    assert (block["a"].tolist(), block["b"].tolist()) == ([1], ["x"])


def test_a_batch_of_other_types_is_refused() -> None:
    """Bytes are never read as another type than they were written."""
    with pytest.raises(SchemaMismatch, match=r"part\.parquet has other columns"):
        Converter(pa.schema([("a", pa.int64())]))(pa.record_batch({"a": pa.array(["x"])}), HERE)


def test_a_text_that_is_none_is_named() -> None:
    """Parquet readers do not check that strings are UTF-8."""
    raw = pa.array([b"a", b"\xff"])
    column = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    batch = pa.record_batch({"c": column})

    with pytest.raises(DataError, match='column "c": a value that cannot be read at row 1 of row group 0'):
        Converter(batch.schema)(batch, HERE)


def test_a_column_that_is_not_there_cannot_be_named() -> None:
    """A misspelt name in an argument would otherwise do nothing."""
    with pytest.raises(UnknownColumn, match='fill_null names column "b"'):
        Converter(pa.schema([("a", pa.int64())]), fill_null={"b": 0})


def test_a_slice_of_a_dictionary_column_has_its_own_rows() -> None:
    """Texts are made once per entry, then taken by the codes of the slice; numbers are decoded."""
    for rows in (list("abcabca"), [5, 6, 5, 7, 5, 5, 5]):
        batch = pa.record_batch({"c": pa.array(rows).dictionary_encode()}).slice(2)

        assert Converter(batch.schema)(batch, HERE)["c"].tolist() == rows[2:]


def test_lists_in_structs_come_back_filled_from_a_file() -> None:
    """A null struct hides what stands below it."""
    rows = [{"x": 1, "l": [1, 2]}, None, {"x": None, "l": None}]
    batch = from_file(pa.array(rows * 2)).slice(1)
    block = Converter(batch.schema, fill_null=0)(batch, HERE)

    assert block["c.x"].tolist() == [0, 0, 1, 0, 0]
    assert python(block["c.l"]) == [[], [], [1, 2], [], []]
