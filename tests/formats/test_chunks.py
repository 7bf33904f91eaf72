"""The sizes of chunks are found in the bytes of a footer as Arrow tells them, or not at all."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.formats._chunks import ChunkSizes, chunk_pattern, find_chunks

COLUMNS: dict[str, Any] = {
    "ids": pa.array([[1, 2, 3], [4], [], None] * 50, pa.list_(pa.int32())),
    "text": ["x" * 1000, "y", "", None] * 50,
    "a.b": [{"a": 1, "c": {"d": "q", "e": [1.5]}}] * 200,
    "a": pa.array([[("k", 1)]] * 200, pa.map_(pa.string(), pa.int64())),
    "b" * 300: ["long name"] * 200,
    "日本": [b"1"] * 200,
    "list": [[[1], [2]]] * 200,
}


def written(**options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(COLUMNS), buffer, **options)
    return buffer.getvalue()


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("rows", [7, 1000])
def test_sizes_are_those_that_arrow_tells(compression: str, statistics: bool, rows: int) -> None:
    data = written(compression=compression, write_statistics=statistics, row_group_size=rows, write_page_index=True)
    metadata = pq.read_metadata(io.BytesIO(data))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    leaf = 0
    for name, leaves in zip(COLUMNS, (1, 1, 3, 2, 1, 1, 1), strict=True):
        chunks = [group.column(i) for group in groups for i in range(leaf, leaf + leaves)]
        expected = [ChunkSizes(num_values=c.num_values, uncompressed=c.total_uncompressed_size) for c in chunks]

        flat = name in ("text", "b" * 300, "日本")
        assert find_chunks(footer_of(data), chunk_pattern(name, flat), len(chunks)) == expected
        leaf += leaves
    assert leaf == metadata.num_columns


def test_another_number_of_chunks_is_not_known() -> None:
    footer = footer_of(written())

    assert find_chunks(footer, chunk_pattern("text", is_flat=True), 2) is None
    assert find_chunks(footer, chunk_pattern("none", is_flat=True), 1) is None
    assert find_chunks(footer, chunk_pattern("text", is_flat=False), 1) is None


@settings(max_examples=50)
@given(st.binary(), st.integers(0, 3))
def test_any_bytes_are_searched(data: bytes, count: int) -> None:
    assert find_chunks(data, chunk_pattern("x", is_flat=False), count) in (None, [])


def test_negative_sizes_are_not_known() -> None:
    pattern = chunk_pattern("x", is_flat=True)

    assert find_chunks(b"\x19\x18\x01x\x15\x00\x16\x06\x16\x08\x16", pattern, 1) == [
        ChunkSizes(num_values=3, uncompressed=4)
    ]
    assert find_chunks(b"\x19\x18\x01x\x15\x00\x16\x05\x16\x08\x16", pattern, 1) is None
