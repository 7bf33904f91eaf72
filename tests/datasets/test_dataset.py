"""Rows by number, in order, in part, and in the form that was asked for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from antifreeze import (
    ConfigError,
    NullValue,
    RaggedColumn,
    SchemaMismatch,
    StreamingDataLoader,
    StreamingDataset,
    UnknownColumn,
    batched,
    index_parquet_dataset,
)

if TYPE_CHECKING:
    from conftest import Data

Write = Callable[..., "Data"]


def numbers(rows: Any) -> list[int]:
    return [int(row["n"]) for row in rows]


def check_row(row: dict[str, Any], n: int) -> None:
    assert int(row["n"]) == n
    assert np.asarray(row["ids"]).tolist() == list(range(n * 16, n * 16 + 16))
    assert int(row["label"]) == n % 7
    assert float(row["score"]) == n * 0.5
    assert row["tag"] == f"tag_{n}"


# -- sources -------------------------------------------------------------------------------------------------------


def test_a_directory_is_searched_to_its_bottom_in_natural_order(write_data: Write) -> None:
    """The order of a file system, or of letters, would change from machine to machine or put 10 before 2."""
    names = ["a1/b2/x.parquet", "a1/b10/x.parquet", "a2/2.parquet", "a2/10.parquet", "a10/1.parquet"]
    data = write_data(5, 6, 7, 8, 9, names=names)

    assert numbers(StreamingDataset(data.path)) == list(range(data.num_rows))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("{}", range(309)),
        ("{}/", range(309)),
        ("{}/*.parquet", range(309)),
        ("{}/part-1*.parquet", [*range(90), *range(193, 309)]),
        ("{}/part-2.parquet", range(90, 193)),
        (["{}/part-2.parquet", "{}/part-1.parquet"], [*range(90, 193), *range(90)]),
    ],
)
def test_a_source_is_a_directory_a_glob_a_file_or_a_list(shared_data: Data, form: Any, expected: Any) -> None:
    """All of them name files, and all rows of these files are there."""
    root = shared_data.path
    source = form.format(root) if isinstance(form, str) else [item.format(root) for item in form]

    found = numbers(StreamingDataset(source, columns=["n"]))

    assert sorted(found) == sorted(expected)
    if isinstance(form, str):
        assert found == list(expected)


def test_a_path_object_is_a_source(shared_data: Data) -> None:
    """Paths come as objects as often as they come as text."""
    assert len(StreamingDataset(shared_data.path)) == len(StreamingDataset([shared_data.path])) == 309


# -- rows by number ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_every_row_can_be_had_by_its_number(shared_data: Data, format_: str) -> None:
    """Forwards, backwards and from the end."""
    dataset = StreamingDataset(shared_data.path, format=format_)
    value: Callable[[Any], Any] = (lambda s: s.as_py()) if format_ == "arrow" else (lambda v: v)

    assert len(dataset) == 309
    for i in [*range(309), *range(308, -1, -7), 0, 308, 150]:
        check_row({k: value(v) for k, v in dataset[i].items()}, i)
        check_row({k: value(v) for k, v in dataset[i - 309].items()}, i)


@pytest.mark.parametrize("index", [309, 310, -310, 10**12, -(10**12)])
def test_a_row_that_is_not_there_is_an_index_error(shared_data: Data, index: int) -> None:
    """Python's own protocol for sequences ends by it."""
    with pytest.raises(IndexError, match="309 rows"):
        StreamingDataset(shared_data.path)[index]


@pytest.mark.parametrize(
    "part",
    [
        slice(None),
        slice(5),
        slice(80, 100),
        slice(-3, None),
        slice(None, None, 50),
        slice(None, None, -1),
        slice(200, 20, -33),
        slice(5, 5),
        slice(9, 3),
        slice(300, 10**9),
        slice(-(10**9), 4),
    ],
    ids=str,
)
def test_a_slice_is_the_list_of_its_rows(shared_data: Data, part: slice) -> None:
    """Slices mean what they mean for a list, steps and reversal included."""
    rows = StreamingDataset(shared_data.path, format="numpy")[part]

    assert isinstance(rows, list)
    assert numbers(rows) == list(range(309))[part]
    for row in rows:
        check_row(row, int(row["n"]))


def test_numpy_numbers_are_numbers(shared_data: Data) -> None:
    """Samplers hand out NumPy's and torch's integers."""
    dataset = StreamingDataset(shared_data.path, columns=["n"])

    assert numbers([dataset[np.int32(5)], dataset[np.uint8(7)], dataset[torch.tensor(9)]]) == [5, 7, 9]


@pytest.mark.parametrize("index", ["n", 1.5, None, (1, 2)])
def test_what_is_no_number_is_refused(shared_data: Data, index: Any) -> None:
    """A wrong index is an error of ours, not of a library below."""
    with pytest.raises((ConfigError, TypeError)):
        StreamingDataset(shared_data.path)[index]


def test_iteration_gives_every_row_in_order_and_can_be_repeated(shared_data: Data) -> None:
    """Plain iteration is what a list would do."""
    dataset = StreamingDataset(shared_data.path)

    for _ in range(2):
        for i, row in enumerate(dataset):
            check_row(row, i)
        assert i == 308


@pytest.mark.parametrize("rows", [slice(5, 20), [7, 3, 3], range(0, 9, 4)], ids=str)
def test_a_subset_can_be_asked_for_at_construction(shared_data: Data, rows: Any) -> None:
    """The argument and the method of one name mean the same."""
    whole = StreamingDataset(shared_data.path, columns=["n"])
    part = StreamingDataset(shared_data.path, columns=["n"], subset=rows)

    assert numbers(part) == numbers(whole.subset(rows))


def test_shuffled_iteration_gives_every_row_once_in_another_order_each_time(shared_data: Data) -> None:
    """Each pass over a shuffled dataset is an epoch of its own; setting the epoch brings one back."""
    dataset = StreamingDataset(shared_data.path, shuffle=True, columns=["n"])

    first, second = numbers(dataset), numbers(dataset)
    dataset.epoch = 0

    assert first != second
    assert sorted(first) == sorted(second) == list(range(309)) != first
    assert numbers(dataset) == first


def test_two_iterations_at_once_do_not_disturb_each_other(shared_data: Data) -> None:
    """A nested loop over one dataset is legal for anything that can be iterated."""
    dataset = StreamingDataset(shared_data.path, columns=["n"])

    pairs = [(int(a["n"]), int(b["n"])) for a, b in zip(dataset, dataset, strict=True)]

    assert pairs == [(i, i) for i in range(309)]


# -- what belongs to the user --------------------------------------------------------------------------------------


def test_changing_a_row_in_place_does_not_change_it_when_it_is_asked_for_again(shared_data: Data) -> None:
    """Decoded pieces are cached; the cache must not be what the user holds."""
    dataset = StreamingDataset(shared_data.path)

    row, rows = dataset[7], dataset[5:10]
    for one in [row, *rows]:
        one["ids"].fill_(-1)
        one["label"].fill_(-1)

    check_row(dataset[7], 7)
    for i, again in enumerate(dataset[5:10]):
        check_row(again, 5 + i)


def test_changing_a_ragged_row_in_place_does_not_change_it_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """Ragged rows are objects in an array: copying the array alone would share them."""
    pq.write_table(pa.table({"ids": [[1], [2, 3], [], [4, 5, 6]]}), tmp_path / "a.parquet")
    dataset = StreamingDataset(tmp_path)

    for row in [dataset[1], *dataset[0:4]]:
        row["ids"].fill_(-1)

    assert [row["ids"].tolist() for row in dataset] == [[1], [2, 3], [], [4, 5, 6]]
    assert [dataset[i]["ids"].tolist() for i in range(4)] == [[1], [2, 3], [], [4, 5, 6]]


def test_a_row_that_is_listed_twice_is_two_rows(tmp_path: Path) -> None:
    """Masking one of two copies must not mask the other: ragged, struct and plain columns alike."""
    table = pa.table({"ids": [[1], [2, 3]], "x": [10, 20], "tags": [["a"], ["b", "c"]]})
    pq.write_table(table, tmp_path / "a.parquet")
    part = StreamingDataset(tmp_path).subset([1, 1, 0, 1])

    (batch,) = list(StreamingDataLoader(part, batch_size=4))
    batch["ids"][0].fill_(-1)
    batch["x"][0] = -1
    batch["tags"][0].append("changed")

    assert [row.tolist() for row in batch["ids"]] == [[-1, -1], [2, 3], [1], [2, 3]]
    assert batch["x"].tolist() == [-1, 20, 10, 20]
    assert batch["tags"] == [["b", "c", "changed"], ["b", "c"], ["a"], ["b", "c"]]


# -- transforms ----------------------------------------------------------------------------------------------------


def test_a_transform_sees_each_row_as_a_dict(shared_data: Data) -> None:
    """By number, by slice, in iteration and in the loader alike."""
    seen: list[type] = []

    def double(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(type(row))
        return {"twice": row["n"] * 2}

    dataset = StreamingDataset(shared_data.path, transform=double)

    assert int(dataset[4]["twice"]) == 8
    assert [int(row["twice"]) for row in dataset[2:5]] == [4, 6, 8]
    assert [int(row["twice"]) for row in dataset] == list(range(0, 618, 2))
    batches = list(StreamingDataLoader(dataset, batch_size=100, num_workers=2))
    assert torch.cat([batch["twice"] for batch in batches]).tolist() == list(range(0, 618, 2))
    assert set(seen) == {dict}


def test_a_marked_transform_sees_whole_batches(shared_data: Data) -> None:
    """One call for each batch, not for each row."""

    @batched
    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {"twice": batch["n"] * 2, "size": len(batch["n"])}

    loader = StreamingDataLoader(StreamingDataset(shared_data.path, transform=double), batch_size=100, num_workers=2)
    batches = list(loader)

    assert torch.cat([batch["twice"] for batch in batches]).tolist() == list(range(0, 618, 2))
    assert [batch["size"] for batch in batches] == [100, 100, 100, 9]


def test_a_marked_transform_is_applied_to_single_rows_too(shared_data: Data) -> None:
    """A dataset whose rows by number differ from those of its batches would be two datasets."""
    dataset = StreamingDataset(shared_data.path, transform=batched(lambda batch: {"twice": batch["n"] * 2}))

    assert int(dataset[4]["twice"]) == 8
    assert [int(row["twice"]) for row in dataset[2:5]] == [4, 6, 8]
    assert [int(row["twice"]) for row in dataset] == list(range(0, 618, 2))


# -- subsets -------------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Any, list[int]]] = {
    "slice": (slice(10, 40), list(range(10, 40))),
    "slice from the end": (slice(-5, None), list(range(304, 309))),
    "slice with a step": (slice(0, 100, 9), list(range(0, 100, 9))),
    "reversed": (slice(None, None, -1), list(range(308, -1, -1))),
    "range": (range(85, 95), list(range(85, 95))),
    "range down": (range(95, 85, -2), list(range(95, 85, -2))),
    "range below zero": (range(-3, -1), [306, 307]),
    "range across zero": (range(-2, 2), [307, 308, 0, 1]),
    "list in any order": ([300, 2, 150, 2, 2, 0, 308, -1], [300, 2, 150, 2, 2, 0, 308, 308]),
    "array": (np.array([9, 8, 200], np.int32), [9, 8, 200]),
    "unsigned array": (np.array([9, 8, 200], np.uint64), [9, 8, 200]),
    "tensor": (torch.tensor([5, 100, 5]), [5, 100, 5]),
    "mask": (np.arange(309) % 100 == 3, [3, 103, 203, 303]),
    "mask as a list": ([i % 100 == 3 for i in range(309)], [3, 103, 203, 303]),
    "mask as a tensor": (torch.arange(309) % 100 == 3, [3, 103, 203, 303]),
    "empty slice": (slice(7, 7), []),
    "empty list": ([], []),
    "empty range": (range(9, 3), []),
    "empty mask": (np.zeros(309, bool), []),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_a_subset_has_the_rows_that_were_named(shared_data: Data, name: str, shuffle: bool) -> None:
    """By number, in iteration and in the loader, in the order and as often as they were named."""
    rows, expected = PARTS[name]

    part = StreamingDataset(shared_data.path, format="numpy", shuffle=shuffle).subset(rows)

    order: Callable[[list[int]], list[int]] = sorted if shuffle else list  # type: ignore[assignment]
    assert len(part) == len(expected)
    assert numbers(part[:]) == expected
    assert numbers([part[i] for i in range(len(part))]) == expected
    assert order(numbers(part)) == order(expected)
    for workers in (0, 2):
        batches = list(StreamingDataLoader(part, batch_size=7, num_workers=workers))
        assert order([n for batch in batches for n in shared_data.check(batch)]) == order(expected)
        assert len(batches) == -(-len(expected) // 7)
    with pytest.raises(IndexError):
        part[len(expected)]


@pytest.mark.parametrize("outer", ["slice", "slice with a step", "list in any order", "mask", "range across zero"])
@pytest.mark.parametrize("inner", [slice(1, 3), slice(None, None, -1), [1, 0, 1], range(-2, 0), slice(0, 0)], ids=str)
def test_a_subset_of_a_subset_counts_in_the_first(shared_data: Data, outer: str, inner: Any) -> None:
    """The second selection knows nothing of the files."""
    rows, chosen = PARTS[outer]
    expected = chosen[inner] if isinstance(inner, slice) else [chosen[i] for i in inner]

    part = StreamingDataset(shared_data.path, columns=["n"]).subset(rows).subset(inner)

    assert numbers(part) == numbers(part[:]) == expected


@pytest.mark.parametrize("rows", [[309], [-310], [0, 10**9], range(300, 310), range(-310, 0)], ids=str)
def test_a_subset_of_rows_that_are_not_there_is_refused(shared_data: Data, rows: Any) -> None:
    """At once, not in the middle of an epoch."""
    with pytest.raises(IndexError, match="309 rows"):
        StreamingDataset(shared_data.path).subset(rows)


@pytest.mark.parametrize("rows", [[1.5], [[1, 2]], ["a"], [True, False], 5, None], ids=str)
def test_a_subset_of_what_are_no_rows_is_refused(shared_data: Data, rows: Any) -> None:
    """A mask of the wrong length must not be taken for row numbers 0 and 1."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataset(shared_data.path).subset(rows)
    assert caught.value.argument == "rows"


def test_a_subset_leaves_the_whole_as_it_was(shared_data: Data) -> None:
    """Splitting into training and validation parts uses one dataset for both."""
    whole = StreamingDataset(shared_data.path, columns=["n"])
    chosen = np.array([5, 3])
    part = whole.subset(chosen)
    chosen[:] = 0

    assert numbers(part) == [5, 3]
    assert len(whole) == 309
    assert numbers(whole) == list(range(309))


# -- columns -------------------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_asked_for(shared_data: Data) -> None:
    """A dict has an order, and a reader of a printout expects his own."""
    dataset = StreamingDataset(shared_data.path, columns=["n", "tag", "ids"])

    assert dataset.columns == ("n", "tag", "ids")
    assert list(dataset[0]) == list(next(iter(dataset))) == ["n", "tag", "ids"]
    assert list(next(iter(StreamingDataLoader(dataset, batch_size=2)))) == ["n", "tag", "ids"]
    assert list(StreamingDataset(shared_data.path)[0]) == ["ids", "label", "score", "tag", "n"]


def test_columns_that_were_not_asked_for_are_not_decoded(data: Data) -> None:
    """Damage in a column nobody reads does no harm: the proof that it is not touched."""
    chunk = pq.read_metadata(data.files[0]).row_group(1).column(0)
    assert chunk.path_in_schema.startswith("ids")
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    status = data.files[0].stat()
    with data.files[0].open("r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(data.files[0], ns=(status.st_atime_ns, status.st_mtime_ns))

    batches = StreamingDataLoader(StreamingDataset(data.path, columns=["n", "tag"]), batch_size=50)

    data.check_all(batches)


def differing(tmp_path: Path) -> list[Path]:
    """Write files that share a column, and differ in others in every way."""
    tables = [
        pa.table({"a": [0, 1], "b": pa.array([0, 1], pa.int32())}),
        pa.table({"b": pa.array([2, 3], pa.int64()), "a": [2, 3]}),
        pa.table({"a": [4, 5], "c": ["x", "y"]}),
        pa.table([[6, 7], [1, 2], [3, 4]], ["a", "b", "b"]),
        pa.table({"a": pa.array([], pa.null())}),
    ]
    paths = [tmp_path / f"{i}.parquet" for i in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table, path)
    return paths


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_files_may_differ_in_columns_that_are_not_asked_for(tmp_path: Path, indexed: bool, format_: str) -> None:
    """They are not read. Who asks for them, or for all, is told which files differ, and how."""
    differing(tmp_path)
    if indexed:
        index_parquet_dataset(tmp_path)
    dataset = StreamingDataset(tmp_path, columns=["a"], format=format_)

    def of(row: Any) -> int:
        return row["a"].as_py() if format_ == "arrow" else int(row["a"])

    assert [of(row) for row in dataset] == [of(dataset[i]) for i in range(8)] == list(range(8))
    for shuffle, workers in ((False, 0), (True, 2)):
        loader = StreamingDataLoader(dataset, batch_size=3, shuffle=shuffle, num_workers=workers)
        found = [batch["a"] for batch in loader]
        assert sorted(i for column in found for i in column.tolist()) == list(range(8))
    for columns, said in (
        (None, "'c' .string. is extra"),
        (["a", "b"], "'b' is int64, not int32"),
        (["c"], "is extra"),
    ):
        with pytest.raises(SchemaMismatch, match=said) as caught:
            StreamingDataset(tmp_path, columns=columns, format=format_)
        assert "columns=" in caught.value.hint
    with pytest.raises(UnknownColumn):
        StreamingDataset(tmp_path, columns=["d"], format=format_)


def test_a_run_resumes_whatever_other_columns_files_have(tmp_path: Path) -> None:
    """A state knows rows, not columns; with a manifest and without."""
    paths = differing(tmp_path)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), paths[-1])
    first = StreamingDataLoader(StreamingDataset(tmp_path, columns=["a"]), batch_size=3)
    next(iter(first))
    index_parquet_dataset(tmp_path)
    second = StreamingDataLoader(StreamingDataset(tmp_path, columns=["a"]), batch_size=3)
    second.load_state_dict(first.state_dict())

    assert [batch["a"].tolist() for batch in second] == [[3, 4, 5], [6, 7]]


def test_folders_may_differ_in_keys_that_are_not_asked_for(tmp_path: Path) -> None:
    """Neither are they read; a folder that has the name of a column matters only to who asks for it."""
    for i, folder in enumerate(("year=1/kind=a", "year=2", "a=9/year=3")):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"a": [i]}), tmp_path / folder / "0.parquet")
    dataset = StreamingDataset(tmp_path, hive=True, columns=["year"])
    assert sorted(int(row["year"]) for row in dataset) == [1, 2, 3]
    with pytest.raises(SchemaMismatch, match="kind="):
        StreamingDataset(tmp_path, hive=True, columns=["kind"])
    with pytest.raises(SchemaMismatch):
        StreamingDataset(tmp_path, hive=True)


@pytest.mark.parametrize(("columns", "unknown"), [(["n", "labels"], "labels"), (["N"], "N"), ([""], "")])
def test_an_unknown_column_is_named_beside_those_that_exist(
    shared_data: Data, columns: list[str], unknown: str
) -> None:
    """At construction, with the list to choose from."""
    with pytest.raises(UnknownColumn, match="ids, label, score, tag, n") as caught:
        StreamingDataset(shared_data.path, columns=columns)
    assert caught.value.column == unknown
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("columns", ["n", [], ["n", "n"], [3], [None]], ids=str)
def test_columns_that_are_no_list_of_names_are_refused(shared_data: Data, columns: Any) -> None:
    """A bare string is a list of letters to Python."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataset(shared_data.path, columns=columns)
    assert caught.value.argument == "columns"


# -- folders as columns --------------------------------------------------------------------------------------------


@pytest.fixture
def hive_data(write_data: Write) -> Data:
    names = ["year=9/kind=a/1.parquet", "year=9/kind=b%20c/1.parquet", "year=10/kind=a/1.parquet"]
    return write_data(30, 40, 50, names=names)


def expected_of(n: int) -> tuple[int, str]:
    return (9, "a") if n < 30 else (9, "b c") if n < 70 else (10, "a")


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_folders_become_columns(hive_data: Data, shuffle: bool, workers: int) -> None:
    """Every row carries the values of the folders that its own file is in."""
    dataset = StreamingDataset(hive_data.path, hive=True)

    assert dataset.columns == ("ids", "label", "score", "tag", "n", "year", "kind")
    batches = list(StreamingDataLoader(dataset, batch_size=16, shuffle=shuffle, num_workers=workers))
    hive_data.check_all(batches)
    for batch in batches:
        found = list(zip(batch["year"].tolist(), batch["kind"], strict=True))
        assert found == [expected_of(n) for n in batch["n"].tolist()]
        assert batch["year"].dtype == torch.int64
        batch["year"].fill_(0)  # writable, as everything in a batch
    row = dataset[45]
    assert (int(row["year"]), row["kind"]) == (9, "b c")


@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_folder_columns_can_be_read_alone_and_in_any_order(hive_data: Data, format_: str) -> None:
    """No column of the files is asked for, and still there are as many rows."""
    alone = StreamingDataset(hive_data.path, hive=True, columns=["year"], format=format_)
    mixed = StreamingDataset(hive_data.path, hive=True, columns=["kind", "n", "year"], format=format_)

    batches = list(StreamingDataLoader(alone, batch_size=1000, num_workers=1))
    years = [y for b in batches for y in (b.column("year").to_pylist() if format_ == "arrow" else b["year"].tolist())]
    assert years == [expected_of(n)[0] for n in range(120)]
    (batch,) = list(StreamingDataLoader(mixed, batch_size=1000, num_workers=1))
    assert (batch.schema.names if format_ == "arrow" else list(batch)) == ["kind", "n", "year"]


def test_without_hive_folders_are_only_folders(hive_data: Data) -> None:
    """And a column that only they have is unknown, with the way to get it in the hint."""
    assert StreamingDataset(hive_data.path).columns == ("ids", "label", "score", "tag", "n")
    with pytest.raises(UnknownColumn, match="hive=True"):
        StreamingDataset(hive_data.path, columns=["year"])


# -- formats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_format_has_its_types(shared_data: Data, shuffle: bool) -> None:
    """The three forms hold the same values in the same order."""
    loaders = {
        f: StreamingDataLoader(StreamingDataset(shared_data.path, format=f), batch_size=50, shuffle=shuffle)
        for f in ("torch", "numpy", "arrow")
    }
    for as_torch, as_numpy, as_arrow in zip(*loaders.values(), strict=True):
        assert isinstance(as_arrow, pa.RecordBatch)
        for name in ("ids", "label", "score", "n"):
            assert isinstance(as_torch[name], torch.Tensor)
            assert isinstance(as_numpy[name], np.ndarray)
            assert as_torch[name].shape == as_numpy[name].shape
            assert as_torch[name].numpy().tobytes() == as_numpy[name].tobytes()
            assert as_arrow.column(name).to_pylist() == as_numpy[name].tolist()
        assert as_torch["tag"] == as_numpy["tag"] == as_arrow.column("tag").to_pylist()
        assert as_torch["ids"].shape[1:] == (16,)


@pytest.mark.parametrize("format_", ["Torch", "pandas", "", None, 3])
def test_an_unknown_format_is_refused(shared_data: Data, format_: Any) -> None:
    """At construction, with the list to choose from."""
    with pytest.raises(ConfigError, match="torch, numpy, arrow") as caught:
        StreamingDataset(shared_data.path, format=format_)
    assert caught.value.argument == "format"


WITHOUT_TORCH = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Blocker())
import antifreeze as af

root = sys.argv[1]
for form in ("numpy", "arrow"):
    for shuffle in (False, True):
        for workers in (0, 2):
            dataset = af.StreamingDataset(root, format=form, shuffle=shuffle)
            rows = []
            for batch in af.StreamingDataLoader(dataset, batch_size=64, num_workers=workers, pin_memory=True):
                rows += batch["n"].tolist() if form == "numpy" else batch.column("n").to_pylist()
            assert sorted(rows) == list(range(309)), form
    assert len(dataset[:5]) == 5
    mapped = af.StreamingDataset(root, format=form, transform=lambda row: row)
    assert sum(len(b["n"]) if form == "numpy" else len(b) for b in af.StreamingDataLoader(mapped, batch_size=9)) == 309
try:
    af.StreamingDataset(root)
except af.ConfigError as error:
    print(error)
assert "torch" not in sys.modules
"""


def test_numpy_and_arrow_work_where_torch_is_not_installed(shared_data: Data) -> None:
    """And asking for torch there says what is missing and what to do."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(shared_data.path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "needs PyTorch, which is not installed" in done.stdout
    assert 'format="numpy"' in done.stdout


# -- nulls and ragged lists ----------------------------------------------------------------------------------------


def test_a_null_is_an_error_that_names_column_file_and_row(tmp_path: Path) -> None:
    """A null that became a zero in silence would be a wrong sample."""
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [3.0, 4.0, 5.0, None]}), tmp_path / "b.parquet", row_group_size=3)

    with pytest.raises(NullValue, match='column "x": null') as caught:
        list(StreamingDataset(tmp_path))
    assert caught.value.file == f"{tmp_path}/b.parquet"
    assert caught.value.file_row == 3
    with pytest.raises(NullValue):
        StreamingDataset(tmp_path)[5]


@pytest.mark.parametrize("fill", [-1.0, {"x": -1.0}])
def test_a_fill_value_stands_in_for_nulls(tmp_path: Path, fill: Any) -> None:
    """One for all columns, or one for each."""
    pq.write_table(pa.table({"x": pa.array([1, None, 3], pa.float32())}), tmp_path / "a.parquet")
    dataset = StreamingDataset(tmp_path, fill_null=fill)

    assert [float(row["x"]) for row in dataset] == [1.0, -1.0, 3.0]
    (batch,) = list(StreamingDataLoader(dataset, batch_size=9, num_workers=1))
    assert batch["x"].dtype == torch.float32
    assert float(dataset[1]["x"]) == -1.0


@pytest.fixture
def ragged_folder(tmp_path: Path) -> Path:
    rows = [list(range(i % 5)) for i in range(40)]
    for name, part in (("a", rows[:25]), ("b", rows[25:])):
        pq.write_table(
            pa.table({"ids": pa.array(part, pa.list_(pa.int32()))}), tmp_path / f"{name}.parquet", row_group_size=7
        )
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_lists_are_lists_of_tensors(ragged_folder: Path, workers: int) -> None:
    """One tensor for each row, by default."""
    batches = list(StreamingDataLoader(StreamingDataset(ragged_folder), batch_size=11, num_workers=workers))

    rows = [row for batch in batches for row in batch["ids"]]
    assert all(isinstance(batch["ids"], list) for batch in batches)
    assert all(row.dtype == torch.int32 for row in rows)
    assert [row.tolist() for row in rows] == [list(range(i % 5)) for i in range(40)]


@pytest.mark.parametrize("pad", [-7, {"ids": -7}])
def test_pad_makes_ragged_lists_one_tensor(ragged_folder: Path, pad: Any) -> None:
    """Each batch is as wide as its longest row."""
    batches = list(StreamingDataLoader(StreamingDataset(ragged_folder, pad=pad), batch_size=11, num_workers=2))

    rows = [row for batch in batches for row in batch["ids"].tolist()]
    assert [row[: i % 5] for i, row in enumerate(rows)] == [list(range(i % 5)) for i in range(40)]
    assert all(value == -7 for i, row in enumerate(rows) for value in row[i % 5 :])
    assert {batch["ids"].shape[1] for batch in batches} == {4}


def test_lists_of_one_length_can_be_declared_ragged(shared_data: Data) -> None:
    """For data that will have other lengths tomorrow."""
    (batch,) = list(StreamingDataLoader(StreamingDataset(shared_data.path, ragged=["ids"]), batch_size=1000))

    assert isinstance(batch["ids"], list)
    assert torch.stack(batch["ids"]).tolist() == [list(range(n * 16, n * 16 + 16)) for n in range(309)]


def test_lists_that_only_add_up_to_one_length_are_ragged(tmp_path: Path) -> None:
    """Footers cannot tell 1 + 3 values in two rows from 2 + 2."""
    for i in range(3):
        pq.write_table(pa.table({"ids": [[1], [2, 3, 4]] if i == 2 else [[1, 2], [3, 4]]}), tmp_path / f"{i}.parquet")

    (batch,) = list(StreamingDataLoader(StreamingDataset(tmp_path), batch_size=9))

    assert [row.tolist() for row in batch["ids"]] == [[1, 2], [3, 4], [1, 2], [3, 4], [1], [2, 3, 4]]


def test_rows_that_cannot_be_stacked_by_the_transform_path_name_the_column(ragged_folder: Path) -> None:
    """With a transform, rows are collated as in torch, which cannot stack ragged ones."""
    loader = StreamingDataLoader(StreamingDataset(ragged_folder, transform=dict), batch_size=11)

    with pytest.raises(Exception, match="ids") as caught:
        list(loader)
    assert isinstance(caught.value.__cause__, RaggedColumn)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"transform": 3}, "transform"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"item_loader": 3.5}, "item_loader"),
        ({"pad": {"ids": "x"}}, "pad"),
        ({"fill_null": {"label": "x"}}, "fill_null"),
    ],
    ids=str,
)
def test_a_bad_argument_is_refused_at_construction(shared_data: Data, options: Any, argument: str) -> None:
    """All that is needed to see the mistake is known there."""
    if argument == "pad":
        options = options | {"ragged": ["ids"]}
    with pytest.raises(ConfigError) as caught:
        StreamingDataset(shared_data.path, **options)
    assert caught.value.argument == argument


@pytest.mark.parametrize("argument", ["pad", "fill_null", "ragged"])
def test_a_column_that_does_not_exist_is_refused_at_construction(shared_data: Data, argument: str) -> None:
    """A misspelt name that is ignored would leave the data as it was not meant to be."""
    with pytest.raises(UnknownColumn) as caught:
        StreamingDataset(shared_data.path, **{argument: {"idz": 0} if argument != "ragged" else ["idz"]})
    assert caught.value.column == "idz"


# -- copies --------------------------------------------------------------------------------------------------------


def negate(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "negative": -row["n"]}


@pytest.mark.parametrize("used", [False, True])
def test_a_dataset_can_be_pickled(shared_data: Data, used: bool) -> None:
    """Frameworks send datasets to other processes, before and after they were used."""
    dataset = StreamingDataset(shared_data.path, transform=negate, columns=["n", "ids"], shuffle=True, seed=7)
    if used:
        dataset[3]
        next(iter(StreamingDataLoader(dataset, batch_size=2, num_workers=1)))
    part = dataset.subset([5, 1])

    again, part_again = pickle.loads(pickle.dumps((dataset, part)))  # noqa: S301

    assert numbers(again[:]) == list(range(309))
    assert numbers(part_again[:]) == [5, 1]
    assert int(again[4]["negative"]) == -4
    assert numbers(again) == numbers(dataset)
    loader = pickle.loads(pickle.dumps(StreamingDataLoader(dataset, batch_size=50)))  # noqa: S301
    assert sorted(int(i) for batch in loader for i in batch["n"]) == list(range(309))


def test_what_a_dataset_is_can_be_read_from_its_repr(shared_data: Data) -> None:
    """The first thing that is printed in a notebook."""
    text = repr(StreamingDataset(shared_data.path))

    assert "309 rows" in text
    assert "3 files" in text
    assert str(shared_data.path) in text
