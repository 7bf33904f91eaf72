"""What every Arrow type becomes, as it comes back from a real Parquet file. The table is that of docs/columns.md."""

from __future__ import annotations

import datetime as dt
import io
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.adapters import finisher
from antifreeze.adapters.torch import finisher as torch_finisher
from antifreeze.core import DataError, SchemaMismatch, UnknownColumn
from antifreeze.formats import Converter, Kind, Where

HERE = Where(file="part.parquet", row_group=0)
PAGE = Path(__file__).parents[2] / "docs" / "columns.md"
NOON = dt.datetime(2024, 5, 17, 12, 0, 1)
DAY = dt.date(2024, 5, 17)
TIME = dt.time(0, 0, 7)
UTC = dt.timezone.utc


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    type: pa.DataType
    rows: list[Any]
    torch: str
    numpy: str
    want: list[Any] | None = None
    """What the rows are as Python objects, if not the same as the rows written."""
    arrow: str = ""
    """The type that Arrow reads back, if it is another one than was written."""
    name: str = ""
    shape: tuple[int, ...] | None = None


def number(arrow_type: pa.DataType, rows: list[Any], dtype: str) -> Case:
    """Return the case of a type that keeps its dtype everywhere."""
    return Case(type=arrow_type, rows=rows, torch=f"{dtype} tensor [B]", numpy=f"{dtype} [B]")


def moment(arrow_type: pa.DataType, row: Any, numpy: str, ticks: str, arrow: str = "") -> Case:
    """Return the case of a type that torch only has ticks for."""
    return Case(
        type=arrow_type,
        rows=[row] * 3,
        torch=f"int64 tensor [B], {ticks}",
        numpy=f"{numpy} [B]",
        arrow=arrow,
        want=[np.array(0 if row is None else row).item()] * 3,
    )


def text(arrow_type: pa.DataType, rows: list[Any]) -> Case:
    """Return the case of a type whose rows are Python objects."""
    word = f"list of {type(rows[0]).__name__}"
    return Case(type=arrow_type, rows=rows, torch=word, numpy=word)


def ints(arrow_type: pa.DataType, dtype: str, **more: Any) -> Case:
    """Return the case of a list of numbers whose lengths differ."""
    return Case(
        type=arrow_type,
        rows=[[1, 2], [], [3]],
        torch=f"list of {dtype} tensors [k]",
        numpy=f"list of {dtype} arrays [k]",
        **more,
    )


I32 = pa.int32()
PAIR = pa.list_(I32, 2)
CASES = [
    Case(type=pa.bool_(), rows=[True, False, True], torch="bool tensor [B]", numpy="bool [B]"),
    *(number(getattr(pa, name)(), [1, 2, 3], name) for name in ("int8", "int16", "int32", "int64")),
    *(number(getattr(pa, name)(), [1, 2, 3], name) for name in ("uint8", "uint16", "uint32", "uint64")),
    *(number(getattr(pa, name)(), [0.5, -2.0, 3.0], name) for name in ("float16", "float32", "float64")),
    *(
        Case(
            type=kind,
            rows=[Decimal("1.10"), Decimal("-2.25"), Decimal("3.00")],
            want=[1.1, -2.25, 3.0],
            torch="float64 tensor [B]",
            numpy="float64 [B]",
        )
        for kind in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(60, 2))
    ),
    text(pa.string(), ["a", "", "é"]),
    text(pa.large_string(), ["a", "", "é"]),
    text(pa.string_view(), ["a", "", "a text too long for a view"]),
    text(pa.binary(), [b"a", b"", b"\xff"]),
    text(pa.large_binary(), [b"a", b"", b"\xff"]),
    text(pa.binary_view(), [b"a", b"", b"bytes too long for a view"]),
    text(pa.binary(2), [b"ab", b"cd", b"ef"]),
    moment(pa.date32(), DAY, "datetime64[D]", "days"),
    moment(pa.date64(), DAY, "datetime64[D]", "days", "date32[day]"),
    moment(pa.time32("s"), TIME, "timedelta64[ms]", "ms", "time32[ms]"),
    moment(pa.time32("ms"), TIME, "timedelta64[ms]", "ms"),
    moment(pa.time64("us"), TIME, "timedelta64[us]", "us"),
    moment(pa.time64("ns"), TIME, "timedelta64[ns]", "ns"),
    moment(pa.timestamp("s"), NOON, "datetime64[ms]", "ms", "timestamp[ms]"),
    *(moment(pa.timestamp(unit), NOON, f"datetime64[{unit}]", unit) for unit in ("ms", "us", "ns")),
    moment(pa.timestamp("us", "Europe/Paris"), NOON.replace(tzinfo=UTC), "datetime64[us]", "us, UTC"),
    *(
        moment(pa.duration(unit), dt.timedelta(seconds=9), f"timedelta64[{unit}]", unit)
        for unit in ("s", "ms", "us", "ns")
    ),
    Case(type=pa.dictionary(I32, pa.string()), rows=["a", "b", "a"], torch="list of str", numpy="list of str"),
    Case(
        type=pa.dictionary(pa.int8(), pa.int64()),
        rows=[5, 6, 5],
        torch="int64 tensor [B]",
        numpy="int64 [B]",
        arrow="int64",
    ),
    Case(
        name="list<int32>, all rows of length 2",
        type=pa.list_(I32),
        rows=[[1, 2], [3, 4], [5, 6]],
        torch="int32 tensor [B, 2]",
        numpy="int32 [B, 2]",
        shape=(2,),
    ),
    ints(pa.list_(I32), "int32", name="list<int32>, other lengths"),
    ints(pa.large_list(I32), "int32"),
    ints(pa.list_view(I32), "int32"),
    ints(pa.large_list_view(I32), "int32"),
    Case(type=PAIR, rows=[[1, 2], [3, 4], [5, 6]], torch="int32 tensor [B, 2]", numpy="int32 [B, 2]"),
    Case(
        type=pa.list_(PAIR, 2),
        rows=[[[1, 2], [3, 4]]] * 3,
        torch="int32 tensor [B, 2, 2]",
        numpy="int32 [B, 2, 2]",
    ),
    Case(
        type=pa.list_(PAIR),
        rows=[[[1, 2], [3, 4]], [], [[5, 6]]],
        torch="list of int32 tensors [k, 2]",
        numpy="list of int32 arrays [k, 2]",
    ),
    Case(
        type=pa.list_(pa.list_(I32)),
        rows=[[[1], [2, 3]], [[4]], [[5], []]],
        torch="list of lists of int32 tensors [k]",
        numpy="list of lists of int32 arrays [k]",
    ),
    Case(type=pa.list_(pa.string()), rows=[["a"], [], ["b", "c"]], torch="list of list", numpy="list of list"),
    Case(
        type=pa.struct([("x", pa.int64()), ("y", pa.string())]),
        rows=[{"x": 1, "y": "a"}, {"x": 2, "y": "b"}, {"x": 3, "y": "c"}],
        torch="dict (x: int64 tensor [B], y: list of str)",
        numpy="dict (x: int64 [B], y: list of str)",
    ),
    text(pa.list_(pa.struct([("x", pa.int64())])), [[{"x": 1}], [], [{"x": 2}]]),
    text(pa.map_(pa.string(), I32), [[("a", 1)], [], [("b", 2), ("c", 3)]]),
    Case(
        name="null, with `fill_null=0`",
        type=pa.null(),
        rows=[None] * 3,
        want=[0] * 3,
        torch="int64 tensor [B]",
        numpy="int64 [B]",
        arrow="null",
    ),
    Case(type=pa.uuid(), rows=[b"0" * 16] * 3, torch="list of bytes", numpy="list of bytes"),
    Case(type=pa.json_(), rows=["{}", "[]", "1"], torch="list of str", numpy="list of str"),
    Case(type=pa.bool8(), rows=[1, 0, 1], torch="int8 tensor [B]", numpy="int8 [B]"),
    Case(
        type=pa.fixed_shape_tensor(I32, [2, 2]),
        rows=[[1, 2, 3, 4]] * 3,
        torch="int32 tensor [B, 4]",
        numpy="int32 [B, 4]",
    ),
]


def short(arrow_type: pa.DataType) -> str:
    """Return the type as the page writes it: without the names that lists give their items."""
    word = str(arrow_type).split("[value_type")[0]
    for noise in ("item: ", "element: ", " ('x')", " ('a')", ", indices=int32, ordered=0", ", indices=int8, ordered=0"):
        word = word.replace(noise, "")
    word = word.replace("extension<", "").replace("arrow.", "") if word.startswith("extension<") else word
    return word.removesuffix(">") if "<" not in word else word


def name_of(case: Case) -> str:
    return case.name or short(case.type)


def lines() -> list[str]:
    """Return the rows of the page's table."""
    return [
        f"| {name_of(case)} | {case.torch} | {case.numpy} | {case.arrow or short(case.type)} |" for case in CASES
    ]


def arrow(case: Case) -> pa.Array:
    if isinstance(case.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(case.type, pa.array(case.rows, case.type.storage_type))
    if case.type == pa.float16():
        return pa.array(np.array(case.rows, np.float16))
    return pa.array(case.rows, case.type)


def batches(table: pa.Table, batch_size: int = 1024) -> list[pa.RecordBatch]:
    """Return the table as it comes back from a file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return list(pq.ParquetFile(sink).iter_batches(batch_size=batch_size))


def describe(value: Any, items: str = "arrays") -> str:
    """Return the words of the page for a part of a batch."""
    if isinstance(value, dict):
        return f"dict ({', '.join(f'{key}: {describe(part, items)}' for key, part in value.items())})"
    if isinstance(value, list):
        first = value[0]
        if isinstance(first, list) and first and isinstance(first[0], np.ndarray | torch.Tensor):
            return f"list of lists of {_array(first[0], 'k', items)}"
        if isinstance(first, np.ndarray | torch.Tensor):
            return f"list of {_array(first, 'k', items)}"
        return f"list of {type(first).__name__}"
    return _array(value, "B", "tensor" if items == "tensors" else "")


def _array(value: Any, first: str, word: str) -> str:
    sides = ", ".join([first, *map(str, value.shape[1:])])
    return " ".join(filter(None, [str(value.dtype).removeprefix("torch."), word, f"[{sides}]"]))


def python(value: Any) -> Any:
    """Return a part of a batch as Python objects."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return type(value)(map(python, value))
    if isinstance(value, dict):
        columns = [python(part) for part in value.values()]
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    return value


def moments(values: np.ndarray[Any, Any]) -> list[Any]:
    """Return times as Arrow's writer was given them."""
    if values.dtype.kind == "m":
        return [dt.timedelta(microseconds=int(tick)) for tick in values.astype("m8[us]").view(np.int64)]
    return values.astype("M8[us]").tolist()


def written(row: Any) -> Any:
    """Return a written time as a timedelta since midnight, or as a moment in UTC."""
    if isinstance(row, dt.time):
        return dt.timedelta(hours=row.hour, minutes=row.minute, seconds=row.second)
    if isinstance(row, dt.datetime):
        return row.replace(tzinfo=None)
    return dt.datetime(row.year, row.month, row.day) if isinstance(row, dt.date) else row


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_type_becomes_what_the_page_says(case: Case) -> None:
    """Types, shapes and values, through a file and both ways to finish."""
    (batch,) = batches(pa.table({"c": arrow(case)}))
    fill = 0 if pa.types.is_null(case.type) else None
    convert = Converter(batch.schema, shapes={"c": case.shape} if case.shape else {}, fill_null=fill)
    block = convert(batch, HERE)
    arrays, tensors = finisher(convert.leaves)(block)["c"], torch_finisher(convert.leaves)(block)["c"]

    assert short(batch.column(0).type) == (case.arrow or short(case.type))
    assert describe(arrays) == case.numpy
    assert describe(tensors, "tensors") == case.torch.split("], ")[0] + "]" * ("], " in case.torch)
    if convert.leaves[0].kind is Kind.TIME:
        assert moments(arrays) == [written(row) for row in case.rows]
        assert tensors.tolist() == arrays.view(np.int64).tolist()
    else:
        assert python(arrays) == python(tensors) == (case.want or case.rows)


def test_the_page_has_the_same_table() -> None:
    """The documentation is the test's own table; run with the difference at hand to mend the page."""
    page = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]

    assert page[1:] == lines()


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_array_is_writable_and_alone(case: Case) -> None:
    """Changing a batch in place reaches neither the next batch nor one made before, and warns of nothing."""
    table = pa.table({"c": pa.concat_arrays([arrow(case)] * 4)})
    fill = 0 if pa.types.is_null(case.type) else None
    pieces = batches(table, batch_size=5)
    convert = Converter(pieces[0].schema, fill_null=fill)
    arrays = [_flat(array) for piece in pieces for array in convert(piece, HERE).values()]
    parts = [part for array in arrays for part in array]

    assert all(part.flags.writeable for part in parts)
    for index, part in enumerate(parts):
        assert not any(np.shares_memory(part, other) for other in parts[index + 1 :])


def _flat(value: Any) -> list[np.ndarray[Any, Any]]:
    """Return all ndarrays in a leaf of a block."""
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return [value]
    inner = [part for item in value if isinstance(item, np.ndarray | list) for part in _flat(item)]
    return [value, *inner] if isinstance(value, np.ndarray) else inner


def test_what_arrow_does_not_own_alone_is_copied() -> None:
    """A buffer over Python bytes cannot be written to; the array can."""
    buffer = pa.py_buffer(np.arange(4, dtype=np.int64).tobytes())
    column = pa.Array.from_buffers(pa.int64(), 4, [None, buffer])
    batch = pa.record_batch({"c": column})
    values = Converter(batch.schema)(batch, HERE)["c"]
    values[:] = 7

    assert column.to_pylist() == [0, 1, 2, 3]


nested = st.lists(st.lists(st.lists(st.integers(-9, 9), max_size=3), max_size=3), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40), data=st.data())
def test_nullable_integers_come_back_filled(rows: list[int | None], data: st.DataObject) -> None:
    """Whatever part of a batch is converted."""
    start = data.draw(st.integers(0, len(rows) - 1))
    (batch,) = batches(pa.table({"c": pa.array(rows, pa.int32())}))
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
    (batch,) = batches(pa.table({"c": pa.array(rows, make(make(pa.int16())))}))
    batch = batch.slice(start)

    assert python(Converter(batch.schema)(batch, HERE)["c"].tolist()) == rows[start:]


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
    schema = pa.schema([("a", pa.int32()), ("b", pa.list_(pa.int32())), ("c", pa.list_(I32, 3)), ("d", pa.bool_())])
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    block = Converter(schema, shapes={"b": (4,)})(batch, HERE)

    assert [value.shape for value in block.values()] == [(0,), (0, 4), (0, 3), (0,)]


def test_a_struct_and_a_column_may_have_the_same_dotted_name() -> None:
    """Both are delivered, and each under its own name."""
    batch = pa.record_batch({"s": pa.array([{"x": 1}]), "s.x": pa.array([2])})
    convert = Converter(batch.schema)

    assert python(finisher(convert.leaves)(convert(batch, HERE))["s"]) == [{"x": 1}]
    assert finisher(convert.leaves)(convert(batch, HERE))["s.x"].tolist() == [2]


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
