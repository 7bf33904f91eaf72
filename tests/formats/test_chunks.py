"""Row groups and chunks are read from the bytes of a footer as Arrow reports them, or refused."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antifreeze.formats import _chunks
from antifreeze.formats._chunks import ChunkField, FooterIndex, GroupChunks, decode

COLUMNS: dict[str, Any] = {
    "ids": pa.array([[1, 2, 3], [4], [], None] * 50, pa.list_(pa.int32())),
    "text": ["x" * 1000, "y", "", None] * 50,
    "a.b": [{"a": 1, "c": {"d": "q", "e": [1.5]}}] * 200,
    "a": pa.array([[("k", 1)]] * 200, pa.map_(pa.string(), pa.int64())),
    "b" * 300: ["long name"] * 200,
    "日本": [b"1"] * 200,
    "list": [[[1], [2]]] * 200,
    "nulls": pa.array([None] * 200, pa.float64()),
}


def written(**options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(COLUMNS), buffer, **options)
    return buffer.getvalue()


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def groups_of(footer: bytes) -> list[GroupChunks]:
    index = FooterIndex(footer, 0)
    return [index.read(group) for group in range(len(index.group_rows))]


def facts(group: GroupChunks) -> list[tuple[int, ...]]:
    return list(zip(*map(group.numbers, list(ChunkField)[1:]), strict=True))


def expected(group: Any) -> list[tuple[int, ...]]:
    chunks = [group.column(number) for number in range(group.num_columns)]
    return [
        (
            c.num_values,
            c.total_uncompressed_size,
            c.total_compressed_size,
            c.data_page_offset,
            -1 if c.dictionary_page_offset is None else c.dictionary_page_offset,
        )
        for c in chunks
    ]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("rows", [7, 1000])
@pytest.mark.parametrize("dictionary", [True, False])
def test_chunks_are_those_that_arrow_reports(compression: str, statistics: bool, rows: int, dictionary: bool) -> None:
    data = written(
        compression=compression,
        write_statistics=statistics,
        row_group_size=rows,
        write_page_index=True,
        use_dictionary=dictionary,
    )
    metadata = pq.read_metadata(io.BytesIO(data))

    index = FooterIndex(footer_of(data), 10**6)
    groups = groups_of(footer_of(data))

    assert (index.num_rows, len(index.group_rows)) == (200, metadata.num_row_groups)
    for number, group in enumerate(groups):
        arrow = metadata.row_group(number)
        assert (group.num_rows, group.total_byte_size) == (arrow.num_rows, arrow.total_byte_size)
        assert facts(group) == expected(arrow)
        assert facts(index.first_groups[number]) == facts(group)


class Never:
    """A pattern that matches nothing."""

    @staticmethod
    def match(*_: object) -> None:
        return None


WIDE = {f"c{i}": [i, None] if i % 3 else [f"text {i}", "x" * (i % 60)] for i in range(400)}
ALIKE = {f"column_{i:04}": ["a", "b"] for i in range(400)}


def footer_of_table(columns: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return footer_of(buffer.getvalue())


@pytest.mark.parametrize("columns", [COLUMNS, WIDE, ALIKE], ids=["few", "wide", "alike"])
def test_patterns_and_the_thorough_reader_agree(columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns only save time."""
    footer = footer_of_table(columns, row_group_size=1)
    fast = [[*facts(group), group.numbers(ChunkField.CODEC)] for group in groups_of(footer)]
    starts = FooterIndex(footer, 0).group_start.tolist()

    monkeypatch.setattr(_chunks, "_any_chunk", Never)

    assert [[*facts(group), group.numbers(ChunkField.CODEC)] for group in groups_of(footer)] == fast
    assert FooterIndex(footer, 0).group_start.tolist() == starts


def test_chunks_of_wide_files_are_matched_by_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise wide files open fifty times slower, and nothing else would show it."""
    slow: list[int] = []
    thorough = _chunks._read_chunk
    monkeypatch.setattr(_chunks, "_read_chunk", lambda reader: slow.append(reader.position) or thorough(reader))

    for columns in (WIDE, ALIKE):
        assert FooterIndex(footer_of_table(columns, row_group_size=1), 400).num_chunks == {400}
        assert slow == []


def test_a_footer_is_cut_to_one_row_group(tmp_path: Path) -> None:
    """Arrow reads that row group from the whole file, and knows of no other."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(100), "s": [str(i) for i in range(100)]}), path, row_group_size=7)
    index = FooterIndex(footer_of(path.read_bytes()), 0)

    for group in range(15):
        metadata = pq.read_metadata(io.BytesIO(index.file_with(group)))
        file = pq.ParquetFile(path, metadata=metadata)
        assert metadata.num_row_groups == 1
        assert file.read_row_group(0).column("x").to_pylist() == list(range(100))[7 * group : 7 * group + 7]
    empty = pq.ParquetFile(io.BytesIO(index.file_with(None)))
    assert empty.schema_arrow == pq.read_schema(path)
    assert empty.metadata.num_row_groups == 0


@given(st.lists(st.integers(-(2**54), 2**54 - 1), max_size=80))
def test_numbers_are_decoded(numbers: list[int]) -> None:
    def zigzag(number: int) -> bytes:
        left, out = (number << 1) ^ (number >> 63), b""
        while left > 0x7F:
            out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
        return out + bytes([left])

    assert decode([zigzag(number) for number in numbers]).tolist() == numbers


@settings(max_examples=300)
@given(st.data())
def test_a_changed_footer_gives_groups_or_a_value_error(data: Any) -> None:
    footer = bytearray(FOOTER)
    for _ in range(data.draw(st.integers(1, 4))):
        footer[data.draw(st.integers(0, len(footer) - 1))] = data.draw(st.integers(0, 255))
    try:
        groups = [facts(group) for group in groups_of(bytes(footer))]
    except ValueError:
        return
    assert len(groups) <= len(footer)


FOOTER = footer_of(written(row_group_size=50))


@pytest.mark.parametrize("end", [0, 1, 10, len(FOOTER) // 2, len(FOOTER) - 1])
def test_a_footer_that_is_cut_off_is_refused(end: int) -> None:
    with pytest.raises(ValueError, match="byte"):
        FooterIndex(FOOTER[:end], 0)
