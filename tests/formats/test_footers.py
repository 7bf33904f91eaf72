"""What a footer tells, and how a file without a good one is named."""

import os
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.core import AntifreezeError, CorruptFile, SourceNotFound, UnreadableFile
from antifreeze.formats import Footer, _footers, read_footer


def footer_of(folder: Path, columns: dict[str, Any], **options: Any) -> Footer:
    pq.write_table(pa.table(columns), folder / "a.parquet", **options)
    return read_footer(str(folder / "a.parquet"))


def test_rows_are_told_per_group(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, {"x": range(10)}, row_group_size=4)

    assert footer.group_rows == (4, 4, 2)


def test_the_schema_has_no_metadata(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"k": "v"})], metadata={"pandas": "{}"})
    pq.write_table(pa.table({"x": [1]}, schema=schema), tmp_path / "a.parquet")

    footer = read_footer(str(tmp_path / "a.parquet"))

    assert footer.schema.metadata is None
    assert footer.schema == pa.schema([("x", pa.int64())])


@pytest.mark.parametrize(
    ("values", "nbytes", "count", "length"),
    [
        (pa.array([1, 2, 3, 4], pa.int16()), 8, 4, 1),
        (pa.array([1.0, None, 3.0, 4.0], pa.float16()), 8, 4, 1),
        (pa.array([True, False, None, True]), 4, 4, 1),
        (pa.array([None] * 4, pa.null()), 4, 4, 1),
        (pa.array([Decimal("1.5")] * 4, pa.decimal128(20, 2)), 32, 4, 1),
        (pa.array([0] * 4, pa.timestamp("us")), 32, 4, 1),
        (pa.array([0] * 4, pa.date32()), 16, 4, 1),
        (pa.array([[1, 2, 3]] * 4, pa.list_(pa.int32())), 48, 12, 3),
        (pa.array([[1, 2, 3]] * 4, pa.list_(pa.int32(), 3)), 48, 12, 3),
        (pa.array([[1, 2], [3], [1, 2], [1, 2, 3]], pa.large_list(pa.int8())), 8, 8, None),
        (pa.array([[[1, 2]] * 3] * 4, pa.list_(pa.list_(pa.int8()))), 24, 24, 6),
        (pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 2, 3), np.int32)), 96, 24, 6),
        (pa.array([{"a": 1, "b": 2.0}] * 4, pa.struct([("a", pa.int8()), ("b", pa.float64())])), 36, 8, 2),
        (pa.array([[(1, 2)]] * 4, pa.map_(pa.int8(), pa.int32())), 20, 8, 2),
    ],
)
def test_columns_are_measured_as_they_are_decoded(
    tmp_path: Path, values: Any, nbytes: int, count: int, length: int | None
) -> None:
    """Between two others, so that a wrong number of leaves would show."""
    footer = footer_of(
        tmp_path, {"before": [1] * 4, "it.self": values, "after": [1] * 4}, row_group_size=2, compression="none"
    )

    assert footer.nbytes == (32, nbytes, 32)
    assert footer.values == (4, count, 4)
    assert footer.lengths == (1, length, 1)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b", None, "d"]),
        pa.array(["a", "b"] * 2, pa.large_string()),
        pa.array([b"a"] * 4, pa.binary(1)),
        pa.array(["a", "b"] * 2).dictionary_encode(),
    ],
)
def test_texts_and_bytes_become_python_objects(tmp_path: Path, values: Any) -> None:
    footer = footer_of(tmp_path, {"x": values, "after": [1] * 4})

    assert footer.nbytes[0] >= 4 * 66
    assert (footer.values, footer.lengths, footer.nbytes[1]) == ((4, 4), (1, 1), 32)


def test_long_texts_count_with_their_characters(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, {"text": ["x" * 10_000 + str(i) for i in range(10)]}, use_dictionary=False)

    assert 100_000 < footer.nbytes[0] < 110_000


def test_lengths_that_differ_between_groups_are_not_told(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, {"x": [[1, 2], [1, 2], [1], [1]]}, row_group_size=2)

    assert footer.lengths == (None,)


def test_a_file_without_rows_has_no_lengths(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, {"x": pa.array([], pa.int64()), "y": pa.array([], pa.list_(pa.int8()))})

    assert sum(footer.group_rows) == 0
    assert (footer.values, footer.lengths) == ((0, 0), (None, None))


def test_a_footer_larger_than_the_first_read_is_read_whole(tmp_path: Path) -> None:
    footer = footer_of(tmp_path, {f"column_{i:04}": [1, 2] for i in range(800)}, row_group_size=1)

    assert (tmp_path / "a.parquet").stat().st_size > 128 * 1024
    assert len(footer.schema) == 800
    assert footer.group_rows == (1, 1)


def test_a_file_with_very_many_chunks_is_measured_by_its_first_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"n": range(400), "s": [f"text {i:03}" for i in range(400)], "l": [[1, 2]] * 400}
    exact = footer_of(tmp_path, columns, row_group_size=10, use_dictionary=False)
    monkeypatch.setattr(_footers, "_MAX_CHUNKS_MEASURED", 9)

    footer = read_footer(str(tmp_path / "a.parquet"))

    assert footer.group_rows == exact.group_rows
    assert footer.values[:2] == exact.values[:2]
    assert footer.nbytes[0] == exact.nbytes[0]
    assert footer.nbytes[1:] == pytest.approx(exact.nbytes[1:], rel=0.02)
    # Lists of another length may follow.
    assert (exact.lengths, footer.lengths) == ((1, 1, 2), (1, 1, None))


def test_equal_schemas_are_one_object(tmp_path: Path) -> None:
    """A hundred thousand files need one schema, not as many."""
    for name in "ab":
        pq.write_table(pa.table({"x": [1]}), tmp_path / name)

    assert read_footer(str(tmp_path / "a")).schema is read_footer(str(tmp_path / "b")).schema


def test_reading_and_indexing_find_the_same_types(tmp_path: Path) -> None:
    """Other programs write UUIDs without Arrow's schema; indexed as one type and read as another, they are refused."""
    path = tmp_path / "a.parquet"
    values = pa.array([bytes(16)], pa.uuid() if hasattr(pa, "uuid") else pa.binary(16))
    pq.write_table(pa.table({"id": values}), path, store_schema=False)

    assert _footers.read_contents(str(path)).schema.equals(read_footer(str(path)).schema)


def good(folder: Path) -> bytes:
    pq.write_table(pa.table({"x": [1, 2, 3], "s": ["a", "b", "c"]}), folder / "good.parquet")
    return (folder / "good.parquet").read_bytes()


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda _: b"", "has zero bytes"),
        (lambda _: b"a,b,c\n1,2,3\n", "is not a Parquet file: it neither begins nor ends as one"),
        (lambda _: b"ab", "is not a Parquet file: it neither begins nor ends as one"),
        (lambda data: data[: len(data) // 2], "was probably cut off while it was written or copied"),
        (lambda data: data[:-1], "was probably cut off while it was written or copied"),
        (lambda data: data[:4], "is too short for a Parquet file (4 bytes)"),
        (lambda data: data[:-4] + b"PARE", "is encrypted"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7f" + b"PAR1", "claims a footer of 2,147,483,655 bytes"),
        (lambda data: data[:-60] + b"\xff" * 52 + data[-8:], "has a footer that cannot be used"),
        (lambda data: data[:-8] + b"\0\0\0\0PAR1", "has a footer that cannot be used"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, damage: Any, text: str) -> None:
    path = tmp_path / "bad.parquet"
    path.write_bytes(damage(good(tmp_path)))

    with pytest.raises(CorruptFile) as caught:
        read_footer(str(path))
    assert caught.value.message.startswith(str(path))
    assert text in caught.value.message
    assert caught.value.hint
    assert caught.value.file == str(path)


@given(place=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_a_flipped_byte_gives_facts_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, flip: int
) -> None:
    """A footer has no checksum, so some changes cannot be seen; but nothing of Arrow's errors may get out."""
    folder = tmp_path_factory.getbasetemp()
    data = bytearray(good(folder))
    data[len(data) - 1 - place % 600] ^= flip
    (folder / "flipped.parquet").write_bytes(data)

    try:
        footer = read_footer(str(folder / "flipped.parquet"))
    except AntifreezeError:
        return
    assert all(rows >= 0 for rows in footer.group_rows)
    assert all(number >= 0 for number in footer.nbytes + footer.values)


def test_a_damaged_statistic_does_not_end_the_interpreter(tmp_path: Path) -> None:
    """Arrow throws through its Python binding when such a chunk is asked for."""
    footer_of(tmp_path, {"x": [[1, 2]] * 3, "s": ["a", "b", "c"]})
    path = tmp_path / "a.parquet"
    data = path.read_bytes()
    for place in range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8):
        # What a longer histogram looks like: the header of a list of i64 with one more entry.
        if data[place] in (0x16, 0x26, 0x36):
            path.write_bytes(data[:place] + bytes([data[place] + 0x10]) + data[place + 1 :])
            with suppress(CorruptFile):
                read_footer(str(path))


def test_chunks_that_cannot_be_true_are_guessed_with_caution(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [[1, 2]] * 3}), path)
    data = path.read_bytes()
    good = read_footer(str(path))
    # The number of values in the chunk: fewer than rows.
    place = data.rindex(b"element\x15\x02\x16\x0c") + 10
    path.write_bytes(data[:place] + b"\x02" + data[place + 1 :])

    footer = read_footer(str(path))

    assert good.lengths == (2,)
    assert footer.lengths == (None,)
    assert footer.group_rows == good.group_rows
    assert footer.nbytes[0] >= good.nbytes[0]


def test_a_file_that_cannot_be_opened_is_not_called_corrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceNotFound, match="has vanished"):
        read_footer(str(tmp_path / "gone.parquet"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableFile, match="pipe cannot be read: it is a named pipe, expected a regular file"):
        read_footer(str(tmp_path / "pipe"))

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "locked.parquet").touch()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnreadableFile, match="cannot be read: Permission denied"):
        read_footer(str(tmp_path / "locked.parquet"))
