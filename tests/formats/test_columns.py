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

from antifreeze.datasets import finisher
from antifreeze.datasets.tensors import finisher as torch_finisher
from antifreeze.formats import Converter, LeafKind, PieceLocation

HERE = PieceLocation(file="part.parquet", row_group=0)
PAGE = Path(__file__).parents[2] / "docs" / "columns.md"
NOON = dt.datetime(2024, 5, 17, 12, 0, 1)
DAY = dt.date(2024, 5, 17)
TIME = dt.time(0, 0, 7)
UTC = dt.UTC


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
    ticks: str = ""
    """The unit of a tensor's ticks."""
    name: str = ""
    shape: tuple[int, ...] | None = None


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
        return (
            f"list of lists of {type(first[0]).__name__}"
            if isinstance(first, list)
            else f"list of {type(first).__name__}"
        )
    return _array(value, "B", "tensor" if items == "tensors" else "")


def _array(value: Any, first: str, word: str) -> str:
    sides = ", ".join([first, *map(str, value.shape[1:])])
    return " ".join(filter(None, [str(value.dtype).removeprefix("torch."), word, f"[{sides}]"]))


def number(arrow_type: pa.DataType, rows: list[Any], dtype: str) -> Case:
    """Return the case of a type that keeps its dtype everywhere."""
    return Case(type=arrow_type, rows=rows, torch=f"{dtype} tensor [B]", numpy=f"{dtype} [B]")


def moment(arrow_type: pa.DataType, row: Any, numpy: str, ticks: str, arrow: str = "") -> Case:
    """Return the case of a type that torch only has ticks for."""
    return Case(
        type=arrow_type,
        rows=[row] * 3,
        torch="int64 tensor [B]",
        numpy=f"{numpy} [B]",
        arrow=arrow,
        ticks=ticks,
    )


def text(arrow_type: pa.DataType, rows: list[Any]) -> Case:
    """Return the case of a type whose rows are Python objects."""
    word = describe(rows)
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
    Case(
        type=pa.list_(pa.string()),
        rows=[["a"], [], ["b", "c"]],
        torch="list of lists of str",
        numpy="list of lists of str",
    ),
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
    for noise in ("item: ", "element: ", " ('c')", ", indices=int32, ordered=0", ", indices=int8, ordered=0"):
        word = word.replace(noise, "")
    word = word.replace("extension<", "").replace("arrow.", "") if word.startswith("extension<") else word
    return word.removesuffix(">") if "<" not in word else word


def name_of(case: Case) -> str:
    return case.name or short(case.type)


def lines() -> list[str]:
    """Return the rows of the page's table."""
    return [
        f"| {name_of(case)} | {', '.join(filter(None, [case.torch, case.ticks]))} | {case.numpy} "
        f"| {case.arrow or short(case.type)} |"
        for case in CASES
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
    try:
        pq.write_table(table, sink)
    except pa.ArrowNotImplementedError as error:  # the oldest pyarrow that we allow writes no views
        pytest.skip(str(error))
    return list(pq.ParquetFile(sink).iter_batches(batch_size=batch_size))


def python(value: Any) -> Any:
    """Return a part of a batch as Python objects."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [part if isinstance(part, dict) else python(part) for part in value]
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
    assert describe(tensors, "tensors") == case.torch
    if convert.leaves[0].kind is LeafKind.TIME:
        assert moments(arrays) == [written(row) for row in case.rows]
        assert tensors.tolist() == arrays.view(np.int64).tolist()
    else:
        assert python(arrays) == python(tensors) == (case.want or case.rows)


def test_the_page_has_the_same_table() -> None:
    """The documentation is the test's own table; run with the difference at hand to mend the page."""
    page = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]

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
