"""Sources that cannot be read are refused when they are opened, by name and with advice."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import (
    AntifreezeError,
    CorruptFile,
    NullValue,
    SchemaMismatch,
    SourceNotFound,
    StreamingDataLoader,
    StreamingDataset,
    index_parquet_dataset,
)

if TYPE_CHECKING:
    from conftest import Data

Open = Callable[[Any], object]


@pytest.fixture(params=[StreamingDataset, index_parquet_dataset], ids=["dataset", "index"])
def open_it(request: pytest.FixtureRequest) -> Open:
    """Return both doors to a source: what one refuses the other refuses."""
    return request.param


def test_a_missing_directory_is_named(tmp_path: Path, open_it: Open) -> None:
    """The most frequent mistake of all."""
    with pytest.raises(SourceNotFound, match=re.escape(f"{tmp_path}/nothing")) as caught:
        open_it(tmp_path / "nothing")
    assert isinstance(caught.value, FileNotFoundError)
    assert caught.value.hint


@pytest.mark.parametrize("content", [[], ["readme.txt", "sub/data.csv"]], ids=["empty", "no parquet"])
def test_a_directory_without_parquet_files_is_named(tmp_path: Path, open_it: Open, content: list[str]) -> None:
    """An epoch of no batches would look like success."""
    folder = tmp_path / "d"
    folder.mkdir()
    for name in content:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")

    with pytest.raises(SourceNotFound, match=re.escape(str(folder))):
        open_it(folder)


def test_a_glob_without_matches_is_named(tmp_path: Path) -> None:
    """With the pattern, as it was written."""
    with pytest.raises(SourceNotFound, match=re.escape(f"{tmp_path}/*.parquet")):
        StreamingDataset(f"{tmp_path}/*.parquet")


def cut_off(path: Path) -> bytes:
    return path.read_bytes()[:-20]


BROKEN: dict[str, Callable[[Path], bytes]] = {
    "zero bytes": lambda _: b"",
    "foreign": lambda _: b"id,label\n1,2\n" * 50,
    "short": lambda _: b"PAR1",
    "only magic": lambda _: b"PAR1PAR1",
    "cut off": cut_off,
    "half": lambda path: path.read_bytes()[: path.stat().st_size // 2],
    "footer of garbage": lambda path: path.read_bytes()[:-300] + b"\x55" * 292 + path.read_bytes()[-8:],
    "footer too long": lambda path: path.read_bytes()[:-8] + b"\xff\xff\xff\x7fPAR1",
    "footer of length zero": lambda path: path.read_bytes()[:-8] + b"\0\0\0\0PAR1",
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_is_not_whole_is_named_when_the_source_is_opened(data: Data, open_it: Open, kind: str) -> None:
    """Among good ones, and long before an epoch reaches it."""
    data.files[1].write_bytes(BROKEN[kind](data.files[1]))

    with pytest.raises(CorruptFile, match=re.escape(str(data.files[1]))) as caught:
        open_it(data.path)
    assert caught.value.file == str(data.files[1])
    assert caught.value.hint


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_without_rows_among_others_is_fine(data: Data, shuffle: bool, workers: int) -> None:
    """First, in the middle and last."""
    empty = pq.read_table(data.files[0]).slice(0, 0)
    for name in ("part-0", "part-3", "part-99"):
        pq.write_table(empty, data.path / f"{name}.parquet")
    dataset = StreamingDataset(data.path)

    data.check_all(StreamingDataLoader(dataset, batch_size=10, shuffle=shuffle, num_workers=workers))
    assert [int(dataset[i]["n"]) for i in (0, 89, 90, 192, 193, 308)] == [0, 89, 90, 192, 193, 308]


def without(table: Any) -> Any:
    return table.drop_columns(["label"])


def extra(table: Any) -> Any:
    return table.append_column("more", table["n"])


def retyped(table: Any) -> Any:
    return table.set_column(1, "label", table["label"].cast(pa.int32()))


def text(table: Any) -> Any:
    return table.set_column(1, "label", table["label"].cast(pa.string()))


@pytest.mark.parametrize(
    ("change", "said"),
    [(without, "'label' is missing"), (extra, "'more'"), (retyped, "int32"), (text, "string")],
)
@pytest.mark.parametrize("indexed", [False, True])
def test_files_whose_schemas_differ_are_named_when_the_source_is_opened(
    data: Data, indexed: bool, change: Callable[[Any], Any], said: str
) -> None:
    """With the file, the column and what is wrong with it."""
    pq.write_table(change(pq.read_table(data.files[1])), data.files[1])
    if indexed:
        index_parquet_dataset(data.path)

    with pytest.raises(SchemaMismatch, match=said) as caught:
        StreamingDataset(data.path)
    assert caught.value.file == str(data.files[1])
    assert str(data.files[1]) in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_columns_in_another_order_are_fine(data: Data, workers: int, shuffle: bool, format_: str) -> None:
    """Columns are found by their names."""
    pq.write_table(pq.read_table(data.files[1]).select(["tag", "n", "label", "ids", "score"]), data.files[1])

    dataset = StreamingDataset(data.path, format=format_)
    batches = list(StreamingDataLoader(dataset, batch_size=50, num_workers=workers, shuffle=shuffle))

    if format_ == "arrow":
        assert {tuple(batch.schema.names) for batch in batches} == {("ids", "label", "score", "tag", "n")}
        batches = [
            {k: v if k == "tag" else np.array(v, np.int32 if k == "ids" else None) for k, v in b.to_pydict().items()}
            for b in batches
        ]
    data.check_all(batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_null_in_the_middle_is_named_by_file_and_row(data: Data, workers: int, shuffle: bool) -> None:
    """The row as it is counted in the file, so that it can be looked up."""
    table = pq.read_table(data.files[1])
    labels = table["label"].to_pylist()
    labels[77] = None
    pq.write_table(table.set_column(1, "label", pa.array(labels, pa.int64())), data.files[1], row_group_size=23)
    loader = StreamingDataLoader(StreamingDataset(data.path), batch_size=1, num_workers=workers, shuffle=shuffle)
    found: list[int] = []

    with pytest.raises(NullValue) as caught:
        found.extend(n for batch in loader for n in data.check(batch))

    error = caught.value
    assert (error.column, error.file, error.file_row) == ("label", str(data.files[1]), 77)
    assert f"row {77} of the file" in str(error)
    assert "fill_null" in error.hint
    if not shuffle:
        assert found == list(range(90 + 69))


def test_every_error_of_a_bad_input_can_be_caught_by_one_name(tmp_path: Path) -> None:
    """A program that wants to say it in its own words needs one except clause."""
    with pytest.raises(AntifreezeError):
        StreamingDataset(tmp_path)
