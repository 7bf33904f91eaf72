"""Each line of the tables for people who come from litData, or from a hand-written Parquet dataset, is true.

A test names its line by the first cell. The last test fails if a table has a line that no test names, or the reverse.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import antifreeze as af
from antifreeze.loaders._stream_run import user_code_of
from antifreeze.streaming.item_loader import ParquetLoader
from conftest import Data

PAGE = Path(__file__).parents[2] / "docs/migrating.md"
Test = TypeVar("Test", bound=Callable[..., None])
_lines: list[tuple[str, str]] = []

LITDATA, ARGUMENTS, BY_HAND = "What is different", "Arguments", "From a hand-written Parquet dataset"


def line(table: str, first_cell: str) -> Callable[[Test], Test]:
    """Say which line of which table a test is about."""
    _lines.append((table, first_cell))
    return lambda test: test


def read(data: Data, *columns: str, **options: Any) -> af.StreamingDataset:
    return af.StreamingDataset(data.path, columns=list(columns or ["n"]), **options)


def numbers(batches: Any) -> list[int]:
    return [int(n) for batch in batches for n in batch["n"]]


def doubled(row: Any) -> Any:
    return {"n": row["n"] * 2}


def random_of(row: Any) -> Any:
    return {"n": row["n"], "random": torch.rand(1).item()}


def pid_of(row: Any) -> Any:
    return {"n": row["n"], "pid": os.getpid()}


# -- what is different ---------------------------------------------------------------------------------------------


@line(LITDATA, "list columns in a batch")
def test_a_list_column_is_one_tensor(shared_data: Data) -> None:
    """Of two dimensions."""
    assert next(iter(af.StreamingDataLoader(read(shared_data, "ids"), batch_size=8)))["ids"].shape == (8, 16)


@pytest.fixture
def ragged(tmp_path: Path) -> Path:
    """A file with lists of two lengths, and a null."""
    pq.write_table(pa.table({"x": [[1], [2, 3]], "y": [1, None]}), tmp_path / "0.parquet")
    return tmp_path


@line(LITDATA, "lists of different lengths")
def test_ragged_lists_are_tensors_or_padded(ragged: Path) -> None:
    """As one likes."""
    plain, padded = (
        next(iter(af.StreamingDataLoader(af.StreamingDataset(ragged, columns=["x"], **pad), batch_size=2)))["x"]
        for pad in ({}, {"pad": 0})
    )
    assert [row.tolist() for row in plain] == [[1], [2, 3]]
    assert padded.tolist() == [[1, 0], [2, 3]]


@line(LITDATA, "nulls")
def test_a_null_is_named_or_filled(ragged: Path) -> None:
    """With file and row."""
    with pytest.raises(af.NullValue, match=r"row 1 of the file.*0\.parquet"):
        list(af.StreamingDataLoader(af.StreamingDataset(ragged, columns=["y"]), batch_size=2))
    filled = af.StreamingDataset(ragged, columns=["y"], fill_null=7)
    assert next(iter(af.StreamingDataLoader(filled, batch_size=2)))["y"].tolist() == [1, 7]


@line(LITDATA, "a row, `dataset[i]`")
def test_a_row_is_what_a_batch_has_at_its_place(shared_data: Data) -> None:
    """Tensors, of which Python's numbers and lists can be had."""
    row = read(shared_data, "n", "ids")[3]
    assert row["n"].shape == ()
    assert (row["n"].item(), row["ids"].tolist()) == (3, list(range(48, 64)))


@line(LITDATA, "`dataset[2:5]`")
def test_a_slice_has_transformed_rows(shared_data: Data) -> None:
    """Like single rows."""
    assert [int(row["n"]) for row in read(shared_data, transform=doubled)[2:5]] == [4, 6, 8]


@line(LITDATA, "`dataset[-1]`")
def test_the_last_row_can_be_asked_for(shared_data: Data) -> None:
    """As in a list."""
    assert int(read(shared_data)[-1]["n"]) == 308


class Asked(af.StreamingDataset):
    """Tells what it is asked for."""

    def __getitem__(self, index: Any) -> Any:
        return {"n": super().__getitem__(index)["n"], "index": index}


@line(LITDATA, "the argument of `__getitem__` in a loader")
def test_getitem_gets_the_number_of_the_row(shared_data: Data) -> None:
    """With which it can be asked for again."""
    batches = list(af.StreamingDataLoader(Asked(shared_data.path, columns=["n"], shuffle=True), batch_size=16))
    assert [int(i) for batch in batches for i in batch["index"]] == numbers(batches) != list(range(309))


@line(LITDATA, "order of the files")
def test_files_come_in_natural_order(shared_data: Data) -> None:
    """The names are part-1, part-2, part-10."""
    assert numbers(af.StreamingDataLoader(read(shared_data), batch_size=100)) == list(range(309))


@line(LITDATA, "folders below the directory")
def test_folders_are_read_and_can_be_columns(tmp_path: Path) -> None:
    """By their names."""
    (tmp_path / "year=7").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "year=7/0.parquet")
    assert len(af.StreamingDataset(tmp_path)) == 1
    assert int(af.StreamingDataset(tmp_path, hive=True)[0]["year"]) == 7


@line(LITDATA, "the index")
def test_an_index_of_litdata_is_ignored(data: Data) -> None:
    """Ours has another name."""
    (data.path / "index.json").write_text('{"chunks": [], "config": {}}')
    assert af.index_parquet_dataset(data.path) == f"{data.path}/_antifreeze_manifest.json"
    assert len(af.StreamingDataset(data.path)) == 309
    assert (data.path / "index.json").read_text() == '{"chunks": [], "config": {}}'


@line(LITDATA, "without an index")
def test_no_index_is_needed_nor_written(data: Data) -> None:
    """Footers tell the same."""
    before = sorted(data.path.iterdir())
    assert len(list(af.StreamingDataset(data.path))) == 309
    assert sorted(data.path.iterdir()) == before


@line(LITDATA, "files that changed after indexing")
def test_files_that_changed_are_named(data: Data) -> None:
    """One that came, and one that is another."""
    af.index_parquet_dataset(data.path)
    (data.path / "new.parquet").write_bytes(data.files[0].read_bytes())
    with pytest.raises(af.SourceChanged, match=r"new\.parquet"):
        af.StreamingDataset(data.path)


@line(LITDATA, "files whose columns differ")
def test_columns_that_differ_matter_to_who_reads_them(data: Data) -> None:
    """Others are not told."""
    pq.write_table(pa.table({"n": [309], "more": [1]}), data.path / "x.parquet")
    with pytest.raises(af.SchemaMismatch, match=r"x\.parquet: .*'more' \(int64\) is extra"):
        af.StreamingDataset(data.path)
    assert numbers(af.StreamingDataLoader(read(data), batch_size=9)) == list(range(310))


@line(LITDATA, "`num_workers`")
@line(LITDATA, "`transform`")
def test_workers_are_threads_and_processes_if_there_is_user_code(shared_data: Data) -> None:
    """Never the trainer itself."""
    plain = af.StreamingDataLoader(read(shared_data), batch_size=16, num_workers=2)
    assert numbers(plain) == list(range(309))
    assert user_code_of(plain).is_empty  # no process is needed
    loader = af.StreamingDataLoader(read(shared_data, transform=pid_of), batch_size=16, num_workers=2)
    pids = {int(pid) for batch in loader for pid in batch["pid"]}
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


@line(LITDATA, "start method")
def test_every_start_method_is_accepted(shared_data: Data) -> None:
    """A context too; none has an effect."""
    for context in ("fork", "spawn", "forkserver", torch.multiprocessing.get_context("spawn"), None):
        assert len(af.StreamingDataLoader(read(shared_data), multiprocessing_context=context)) == 309


@line(LITDATA, "random numbers in `transform`")
def test_random_numbers_belong_to_the_batch(shared_data: Data) -> None:
    """Whoever makes it."""
    dataset = read(shared_data, transform=random_of)
    found = [
        [x for batch in af.StreamingDataLoader(dataset, batch_size=16, num_workers=w) for x in batch["random"].tolist()]
        for w in (0, 1, 2)
    ]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 309


def ranks(dataset: Any, world_size: int, **options: Any) -> list[af.StreamingDataLoader]:
    return [af.StreamingDataLoader(dataset, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


@line(LITDATA, "ranks")
def test_a_run_resumes_on_another_number_of_ranks(shared_data: Data) -> None:
    """With every row once."""
    dataset = read(shared_data, shuffle=True)
    two = ranks(dataset, 2, batch_size=10)
    first = [n for loader in two for n in numbers(itertools.islice(loader, 5))]
    four = ranks(dataset, 4, batch_size=5)
    for loader in four:
        loader.load_state_dict(two[0].state_dict())
    rest = [n for loader in four for n in numbers(loader)]
    assert set(first).isdisjoint(rest)
    assert {*first, *rest} == set(range(309))


@line(LITDATA, "`len(dataset)`, and `length=` of a `ParallelStreamingDataset`")
def test_a_length_is_that_of_all_ranks(shared_data: Data) -> None:
    """The loader knows its own."""
    dataset = read(shared_data)
    assert len(dataset) == 309
    assert [len(loader) for loader in ranks(dataset, 2, batch_size=10)] == [16, 16]
    pairs = af.ParallelStreamingDataset([dataset, dataset], length=100)
    assert sum(len(a["n"]) for loader in ranks(pairs, 2, batch_size=10) for a, _ in loader) == 100


@line(LITDATA, "`drop_last` on several ranks")
def test_ranks_have_equally_many_batches_and_leave_no_row_out(shared_data: Data) -> None:
    """309 rows are two batches of 100 on each of two ranks: 200, and the other 109; or one batch, with drop_last."""
    loaders = ranks(read(shared_data), 2, batch_size=77)
    found = [list(loader) for loader in loaders]
    assert {len(batches) for batches in found} == {3}
    assert {n for batches in found for n in numbers(batches)} == set(range(309))
    assert loaders[0].drop_last is False
    assert {len(list(loader)) for loader in ranks(read(shared_data, drop_last=True), 2, batch_size=77)} == {2}


@pytest.fixture
def parts(shared_data: Data) -> list[af.StreamingDataset]:
    """Two datasets, of 100 and 200 rows."""
    whole = read(shared_data)
    return [whole.subset(range(100)), whole.subset(range(100, 300))]


@line(LITDATA, "a `CombinedStreamingDataset` with `weights`")
def test_weights_go_with_all_rows_and_have_a_len(parts: list[af.StreamingDataset]) -> None:
    """Either way."""
    for iterate_over_all in (True, False):
        mixed = af.CombinedStreamingDataset(parts, weights=[3, 1], iterate_over_all=iterate_over_all)
        found = numbers(af.StreamingDataLoader(mixed, batch_size=8))
        assert len(found) == len(mixed)
        assert (sorted(found) == list(range(300))) is iterate_over_all


@line(LITDATA, "fractions in a mixture")
def test_every_stretch_has_its_shares(parts: list[af.StreamingDataset]) -> None:
    """To the row."""
    mixed = af.CombinedStreamingDataset(parts, weights=[1, 1], iterate_over_all=False)
    found = numbers(af.StreamingDataLoader(mixed, batch_size=8))
    for first in (0, 64):
        assert Counter(n < 100 for n in found[first : first + 64]) == {True: 32, False: 32}


@line(LITDATA, "a mixture of datasets with other columns or types")
def test_other_columns_cannot_be_mixed(shared_data: Data) -> None:
    """They are named."""
    with pytest.raises(af.SchemaMismatch, match=r"label \(int64\), n \(int64\)"):
        af.CombinedStreamingDataset([read(shared_data, "n"), read(shared_data, "label")])


class Iterated(af.StreamingDataset):
    """Changes how rows are iterated over."""

    def __iter__(self) -> Any:
        return itertools.islice(super().__iter__(), 3)


class Wrapped(torch.utils.data.IterableDataset[Any]):
    """What the line recommends."""

    def __init__(self, dataset: af.StreamingDataset) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        return iter(self.dataset)


@line(LITDATA, "a class that overrides `__iter__` or `__next__`")
def test_overriding_iteration_is_an_error_that_names_the_way(shared_data: Data) -> None:
    """And the way works."""
    dataset = Iterated(shared_data.path, columns=["n"])
    with pytest.raises(af.ConfigError, match="Iterated overrides __iter__") as caught:
        af.StreamingDataLoader(dataset)
    assert "transform or __getitem__" in caught.value.hint
    assert numbers(af.DataLoader(Wrapped(dataset), batch_size=2)) == [0, 1, 2]


@line(LITDATA, "`loader.current_epoch`")
def test_epochs_are_counted_from_one(parts: list[af.StreamingDataset]) -> None:
    """One that is continued is not counted twice."""
    loader = af.StreamingDataLoader(af.ParallelStreamingDataset(parts, length=40), batch_size=8)
    assert loader.current_epoch == 0
    seen = []
    for number in (5, 2, 3, 5):
        assert len(list(itertools.islice(loader, number))) == number
        seen.append(loader.current_epoch)
    assert seen == [1, 2, 2, 3]


# -- arguments -----------------------------------------------------------------------------------------------------


@line(ARGUMENTS, "`StreamingDataset(input_dir)`")
def test_input_dir_is_a_path_a_glob_a_file_or_a_list(shared_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local only."""
    path = shared_data.path
    monkeypatch.chdir(path.parent)
    for given in (str(path), path, f"{path}/*.parquet", list(shared_data.files), f"local:{path}", f"local:{path.name}"):
        assert len(af.StreamingDataset(input_dir=given)) == 309
    assert len(af.StreamingDataset(shared_data.files[0])) == 90
    with pytest.raises(af.ConfigError, match="s3:// is not supported"):
        af.StreamingDataset("s3://bucket/data")


@line(ARGUMENTS, "`cache_dir`, `max_cache_size`, `max_pre_download`")
@line(ARGUMENTS, "`storage_options`, `session_options`")
@line(ARGUMENTS, "`num_canonical_nodes`, `batch_decode`, `item_shuffle_window`")
def test_what_has_no_effect_is_accepted(shared_data: Data, tmp_path: Path) -> None:
    """And nothing is written."""
    cache = tmp_path / "cache"
    dataset = read(
        shared_data,
        cache_dir=str(cache),
        max_cache_size="50GB",
        max_pre_download=4,
        storage_options={"key": "value"},
        session_options={"region": "here"},
        num_canonical_nodes=2,
        batch_decode="all",
        item_shuffle_window="full",
    )
    assert numbers(af.StreamingDataLoader(dataset, batch_size=9)) == list(range(309))
    assert not cache.exists()
    with pytest.raises(af.ConfigError, match=r"cache_dir=.*is not a path") as caught:
        af.StreamingDataset(shared_data.path, ["n"])  # columns, and not by name
    assert "columns=" in caught.value.hint


@line(ARGUMENTS, "`item_loader=ParquetLoader(...)`")
def test_an_item_loader_chooses_columns(shared_data: Data) -> None:
    """By position or by name, as in litData; another one is refused."""
    for loader in (ParquetLoader(True, False, ["n"]), ParquetLoader(low_memory=False, columns=["n"])):
        assert set(af.StreamingDataset(shared_data.path, item_loader=loader)[0]) == {"n"}
    with pytest.raises(af.ConfigError, match="item_loader is a object"):
        af.StreamingDataset(shared_data.path, item_loader=object())  # type: ignore[arg-type]


@line(ARGUMENTS, "`shuffle`, `seed`, `drop_last`, `index_path`")
def test_these_mean_the_same(data: Data, tmp_path: Path) -> None:
    """By position too: all arguments stand in litData's order."""
    af.index_parquet_dataset(data.path, index_path=tmp_path / "m.json")
    given = [str(data.path), None, ParquetLoader(columns=["n"]), True, True, 3, None, None, 1.0, None, None, None, 2]
    one = af.StreamingDataset(*given, str(tmp_path / "m.json"), False, doubled)  # type: ignore[arg-type]
    two = read(data, shuffle=True, drop_last=True, seed=3, index_path=str(tmp_path / "m.json"), transform=doubled)
    found = [numbers(af.StreamingDataLoader(dataset, batch_size=10)) for dataset in (one, two)]
    assert found[0] == found[1] != sorted(found[0])
    assert len(found[0]) == 300
    assert numbers(af.StreamingDataLoader(read(data, shuffle=True, seed=4, transform=doubled))) != found[0]


@line(ARGUMENTS, "`transform`")
def test_a_transform_may_be_a_list(shared_data: Data) -> None:
    """Applied from left to right."""
    functions = [doubled, lambda row: {"n": row["n"] + 1}]
    for transform, expected in ((doubled, 6), (functions, 7), (tuple(functions), 7), ([], 3)):
        assert int(read(shared_data, transform=transform)[3]["n"]) == expected
    with pytest.raises(af.ConfigError, match="not a function"):
        read(shared_data, transform=[doubled, 3])
    with pytest.raises(af.ConfigError, match="functions of rows and functions of whole batches"):
        read(shared_data, transform=[doubled, af.batched(doubled)])
    whole = read(shared_data, transform=[af.batched(doubled), af.batched(doubled)])
    assert numbers(af.StreamingDataLoader(whole, batch_size=100)) == list(range(0, 1236, 4))


@line(ARGUMENTS, "`subsample`")
def test_a_subsample_is_a_fraction(shared_data: Data) -> None:
    """Above one, rows are repeated; certain rows are a subset."""
    assert len(read(shared_data, subsample=0.1)) == 30
    assert len(read(shared_data, subsample=2.0)) == 618
    assert [int(row["n"]) for row in read(shared_data).subset([5, 3])] == [5, 3]


@line(ARGUMENTS, "`force_override_state_dict`")
def test_a_state_can_be_forced(shared_data: Data, parts: list[af.StreamingDataset]) -> None:
    """For each kind of dataset; strict= is stronger."""
    state = af.StreamingDataLoader(read(shared_data, seed=1)).state_dict()
    for forced in (True, False):
        datasets = [
            read(shared_data, force_override_state_dict=forced),
            af.CombinedStreamingDataset(parts, force_override_state_dict=forced),
            af.ParallelStreamingDataset(parts, force_override_state_dict=forced),
        ]
        for dataset in datasets:
            loader = af.StreamingDataLoader(dataset, seed=2)
            if forced:
                loader.load_state_dict(state)
                with pytest.raises(af.StateMismatch):
                    loader.load_state_dict(state, strict=True)
            else:
                with pytest.raises(af.StateMismatch):
                    loader.load_state_dict(state)


@line(ARGUMENTS, "`serializers`, `encryption`, `window_direct_io`")
@pytest.mark.parametrize("name", ["serializers", "encryption", "window_direct_io"])
def test_what_parquet_has_not_is_refused_unless_it_asks_for_nothing(shared_data: Data, name: str) -> None:
    """With the way."""
    for nothing in (None, False, {}):
        read(shared_data, **{name: nothing})
    with pytest.raises(af.ConfigError, match=f"{name}=.* is not supported") as caught:
        read(shared_data, **{name: object() if name == "encryption" else True})
    assert caught.value.hint
    assert caught.value.argument == name


def summed(rows: list[Any]) -> Any:
    return {"n": torch.stack([row["n"] for row in rows]) + 1}


@line(ARGUMENTS, "`StreamingDataLoader(batch_size, num_workers, shuffle, drop_last, collate_fn, pin_memory, timeout)`")
def test_the_loaders_arguments_mean_the_same(shared_data: Data) -> None:
    """By position in torch's order, too."""
    options = {"num_workers": 1, "collate_fn": summed, "pin_memory": False, "drop_last": True, "timeout": 60}
    one = af.StreamingDataLoader(read(shared_data), batch_size=100, shuffle=True, **options)  # type: ignore[arg-type]
    two = af.StreamingDataLoader(read(shared_data), 100, True, None, None, 1, summed, False, True, 60)
    found = numbers(one)
    assert found == numbers(two) != sorted(found)
    assert len(set(found)) == 300


@line(ARGUMENTS, "`prefetch_factor`")
@line(ARGUMENTS, "`persistent_workers`")
def test_workers_may_stay_and_have_several_batches(shared_data: Data) -> None:
    """The same processes in the next epoch."""
    for persistent in (True, False):
        loader = af.StreamingDataLoader(
            read(shared_data, transform=pid_of),
            batch_size=16,
            num_workers=1,
            prefetch_factor=3,
            persistent_workers=persistent,
        )
        epochs = [{int(pid) for batch in loader for pid in batch["pid"]} for _ in range(2)]
        assert (epochs[0] == epochs[1]) is persistent
    with pytest.raises(af.ConfigError, match="prefetch_factor=0"):
        af.StreamingDataLoader(read(shared_data), prefetch_factor=0)


_started: list[int] = []


def note(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert (info.id, info.num_workers, type(info.dataset)) == (worker, 2, af.StreamingDataset)
    _started.append(worker)


def started_of(row: Any) -> Any:
    return {"n": row["n"], "started": len(_started), "worker": torch.utils.data.get_worker_info().id}


def fails_to_start(worker: int) -> None:
    raise RuntimeError(f"not worker {worker}")


@line(ARGUMENTS, "`worker_init_fn`")
def test_a_worker_is_initialized_once(shared_data: Data) -> None:
    """Where there are worker processes; what it raises is an error."""
    dataset = read(shared_data, transform=started_of)
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=2, worker_init_fn=note)
    batches = list(loader)
    assert {int(i) for batch in batches for i in batch["started"]} == {1}
    assert {int(i) for batch in batches for i in batch["worker"]} <= {0, 1}
    assert _started == []
    plain = af.StreamingDataLoader(read(shared_data), batch_size=16, num_workers=2, worker_init_fn=fails_to_start)
    assert numbers(plain) == list(range(309))
    with pytest.raises(af.UserCodeError, match=r"worker_init_fn\(\d\).*not worker"):
        list(af.StreamingDataLoader(dataset, batch_size=16, num_workers=2, worker_init_fn=fails_to_start))
    with pytest.raises(af.ConfigError, match="worker_init_fn=3"):
        af.StreamingDataLoader(dataset, worker_init_fn=3)  # type: ignore[arg-type]


@line(ARGUMENTS, "`multiprocessing_context`, `pin_memory_device`, `in_order`")
def test_these_arguments_of_torch_have_no_effect(shared_data: Data) -> None:
    """Batches come in order all the same."""
    loader = af.StreamingDataLoader(
        read(shared_data), 9, multiprocessing_context="spawn", pin_memory_device="cuda", in_order=False, num_workers=2
    )
    assert numbers(loader) == list(range(309))


@line(ARGUMENTS, "`profile_batches`, `profile_cprofile`")
def test_profiles_are_refused(shared_data: Data) -> None:
    """With the way to see where the time goes."""
    af.StreamingDataLoader(read(shared_data), profile_batches=False, profile_dir="x", profile_skip_batches=3)
    for name in ("profile_batches", "profile_cprofile"):
        with pytest.raises(af.ConfigError, match=name) as caught:
            af.StreamingDataLoader(read(shared_data), **{name: True})  # type: ignore[arg-type]
        assert "report()" in caught.value.hint


@line(ARGUMENTS, "`sampler`, `batch_sampler`, `generator`, `batch_size=None`")
@pytest.mark.parametrize(
    ("options", "way"),
    [
        ({"sampler": [1, 2]}, r"dataset\.subset.*antifreeze\.DataLoader"),
        ({"batch_sampler": [[1, 2]]}, r"dataset\.subset.*antifreeze\.DataLoader"),
        ({"generator": torch.Generator()}, "seed="),
        ({"batch_size": None}, "iterate over the dataset"),
        ({"filters": [("n", ">", 3)]}, r"dataset\.subset"),
        ({"columns": ["n"]}, "give it to StreamingDataset"),
        ({"weights": [1, 2]}, "CombinedStreamingDataset"),
        ({"num_worker": 3}, r"did you mean num_workers\?"),
        ({"nonsense": 3}, "leave it out"),
    ],
)
def test_what_a_loader_has_not_is_an_error_that_names_the_way(
    shared_data: Data, options: dict[str, Any], way: str
) -> None:
    """Never a bare TypeError."""
    with pytest.raises(af.ConfigError) as caught:
        af.StreamingDataLoader(read(shared_data), **options)
    assert re.search(way, caught.value.hint, re.DOTALL)
    assert caught.value.argument == next(iter(options))


@pytest.mark.parametrize(
    ("dataset", "way"),
    [
        ([1, 2, 3], "antifreeze.DataLoader"),
        (torch.utils.data.TensorDataset(torch.zeros(3)), "antifreeze.DataLoader"),
        (Wrapped(None), "antifreeze.DataLoader"),  # type: ignore[arg-type]
        ("data/train", "antifreeze.StreamingDataset('data/train')"),
        (Path("data/train"), "antifreeze.StreamingDataset('data/train')"),
        (["a.parquet", "b.parquet"], "antifreeze.StreamingDataset(paths)"),
        (af.StreamingDataset, "it is a class"),
        (None, "antifreeze.StreamingDataset(path)"),
    ],
)
def test_what_a_loader_cannot_read_is_an_error_that_names_the_way(dataset: Any, way: str) -> None:
    """For lists, paths and datasets of torch."""
    with pytest.raises(af.ConfigError, match="expected a StreamingDataset") as caught:
        af.StreamingDataLoader(dataset)
    assert way in caught.value.hint


def test_a_list_of_datasets_is_an_error_that_names_the_way(parts: list[af.StreamingDataset]) -> None:
    """There are two."""
    with pytest.raises(af.ConfigError) as caught:
        af.StreamingDataLoader(parts)  # type: ignore[arg-type]
    assert "CombinedStreamingDataset" in caught.value.hint
    assert "ParallelStreamingDataset" in caught.value.hint


@pytest.mark.parametrize(
    "make",
    [af.StreamingDataset, af.CombinedStreamingDataset, af.ParallelStreamingDataset, af.index_parquet_dataset],
)
def test_no_argument_is_a_bare_type_error(shared_data: Data, parts: list[af.StreamingDataset], make: Any) -> None:
    """By a wrong name, or one too many."""
    first = parts if "Streaming" in make.__name__ and make is not af.StreamingDataset else shared_data.path
    with pytest.raises(af.ConfigError, match=rf"{make.__name__} has no argument 'nonsense'"):
        make(first, nonsense=3)
    with pytest.raises(af.ConfigError, match=rf"{make.__name__} takes at most \d+ arguments by position"):
        make(first, *[None] * 30)


@line(ARGUMENTS, "`CombinedStreamingDataset(datasets, seed, weights, iterate_over_all)`")
def test_a_mixture_takes_litdatas_order(parts: list[af.StreamingDataset]) -> None:
    """And means the same."""
    one = af.CombinedStreamingDataset(parts, 3, [1, 0], False, "stratified", False)
    two = af.CombinedStreamingDataset(parts, seed=3, weights=[1, 0], iterate_over_all=False)
    found = [numbers(af.StreamingDataLoader(mixed, batch_size=8)) for mixed in (one, two)]
    assert found[0] == found[1] == list(range(100))


@line(ARGUMENTS, "`batching_method`")
def test_batches_can_be_of_one_dataset(parts: list[af.StreamingDataset]) -> None:
    """With every row once."""
    mixed = af.CombinedStreamingDataset(parts, batching_method="per_stream")
    batches = list(af.StreamingDataLoader(mixed, batch_size=20))
    assert all(len({int(n) < 100 for n in batch["n"]}) == 1 for batch in batches)
    assert sorted(numbers(batches)) == list(range(300))


def drawn(rows: Any, rngs: Any) -> Any:
    return {"n": rows[0]["n"] + rows[1]["n"], "random": rngs["random"].random()}


@line(ARGUMENTS, "`ParallelStreamingDataset(datasets, length, transform, seed)`")
@line(ARGUMENTS, "`resume`")
@line(ARGUMENTS, "`reset_rngs`")
def test_datasets_side_by_side_take_litdatas_order(parts: list[af.StreamingDataset]) -> None:
    """What two epochs of litData have, ours have."""
    for resume, second in ((True, [100 + 2 * n for n in range(60, 100)]), (False, None)):
        pairs = af.ParallelStreamingDataset(parts, 60, False, drawn, 3, resume, True)
        loader = af.StreamingDataLoader(pairs, batch_size=8)
        epochs = [list(loader) for _ in range(2)]
        assert numbers(epochs[0]) == [100 + 2 * n for n in range(60)]
        assert numbers(epochs[1])[:40] == (second or numbers(epochs[0]))[:40]
        randoms = [[x for batch in epoch for x in batch["random"].tolist()] for epoch in epochs]
        assert randoms[0] == randoms[1]
    endless = af.ParallelStreamingDataset(parts, float("inf"))
    assert sum(len(a["n"]) for a, _ in itertools.islice(af.StreamingDataLoader(endless, batch_size=8), 50)) == 400


@line(ARGUMENTS, "`train_test_split(streaming_dataset, splits, seed, shuffle)`")
def test_a_split_takes_litdatas_names_and_order(shared_data: Data) -> None:
    """By position, by our names, or by litData's."""
    dataset = read(shared_data)
    found = [
        [[int(row["n"]) for row in part] for part in split]
        for split in (
            af.train_test_split(dataset, [0.5, 0.5], 3, True),
            af.train_test_split(dataset=dataset, splits=[0.5, 0.5], seed=3),
            af.train_test_split(streaming_dataset=dataset, splits=[0.5, 0.5], seed=3),  # type: ignore[call-arg]
        )
    ]
    assert found[0] == found[1] == found[2]
    assert sorted(found[0][0] + found[0][1]) == list(range(309))
    with pytest.raises(af.ConfigError, match="dataset is a CombinedStreamingDataset"):
        af.train_test_split(af.CombinedStreamingDataset([dataset]), [0.5])  # type: ignore[type-var]


@line(ARGUMENTS, "`index_parquet_dataset(pq_dir_url, cache_dir, storage_options, num_workers)`")
def test_indexing_takes_litdatas_names_and_order(data: Data, tmp_path: Path) -> None:
    """The folder that is written to is where the dataset looks, if it is told."""
    assert af.index_parquet_dataset(pq_dir_url=str(data.path)) == f"{data.path}/_antifreeze_manifest.json"  # type: ignore[call-arg]
    cache = tmp_path / "cache"
    cache.mkdir()
    assert af.index_parquet_dataset(str(data.path), str(cache), {}, 2) == f"{cache}/_antifreeze_manifest.json"
    assert len(af.StreamingDataset(data.path, index_path=str(cache))) == 309
    with pytest.raises(af.InputError, match="no such folder"):
        af.index_parquet_dataset(data.path, cache_dir=tmp_path / "missing")


# -- from a hand-written Parquet dataset ---------------------------------------------------------------------------


@line(BY_HAND, "a `Dataset` that opens Parquet files")
@line(BY_HAND, "sharing files among workers with `get_worker_info`")
def test_threads_share_the_files(shared_data: Data) -> None:
    """Every row comes once."""
    loader = af.StreamingDataLoader(read(shared_data), batch_size=16, num_workers=3)
    assert numbers(loader) == list(range(309))


@line(BY_HAND, "`filters=` of pyarrow")
def test_a_mask_chooses_rows(shared_data: Data) -> None:
    """And `filters=` says so."""
    labels = pq.read_table(shared_data.path, columns=["n"])["n"].to_numpy()
    dataset = read(shared_data)
    order = np.array([int(row["n"]) for row in dataset])
    assert sorted(labels) == sorted(order)
    assert numbers(af.StreamingDataLoader(dataset.subset(order % 7 == 2), batch_size=9)) == list(range(2, 309, 7))
    with pytest.raises(af.ConfigError, match="StreamingDataset has no argument 'filters'") as caught:
        read(shared_data, filters=[("n", ">", 3)])
    assert "dataset.subset" in caught.value.hint


@line(BY_HAND, "a shuffle buffer")
def test_shuffling_is_an_argument(shared_data: Data) -> None:
    """Every row once, in another order."""
    found = numbers(af.StreamingDataLoader(read(shared_data), batch_size=16, shuffle=True))
    assert sorted(found) == list(range(309)) != found


@line(BY_HAND, "a collate function that stacks lists")
def test_lists_are_stacked(shared_data: Data) -> None:
    """Without a function."""
    (batch, *_) = af.StreamingDataLoader(read(shared_data, "ids"), batch_size=16)
    assert torch.equal(batch["ids"], torch.arange(256, dtype=torch.int32).reshape(16, 16))


@line(BY_HAND, "a collate function that pads")
def test_lists_are_padded(ragged: Path) -> None:
    """With the value that was given."""
    dataset = af.StreamingDataset(ragged, columns=["x"], pad=0)
    assert next(iter(af.StreamingDataLoader(dataset, batch_size=2)))["x"].tolist() == [[1, 0], [2, 3]]


@line(BY_HAND, '`if __name__ == "__main__":`, `spawn`')
def test_workers_need_no_guard_and_no_names(shared_data: Data) -> None:
    """A lambda travels; that scripts need no guard is shown by the examples."""
    dataset = read(shared_data, transform=lambda row: {"n": row["n"] + 1})
    assert numbers(af.StreamingDataLoader(dataset, batch_size=16, num_workers=1)) == list(range(1, 310))


@line(BY_HAND, "`worker_init_fn` for random numbers")
def test_random_numbers_are_seeded_for_each_batch(shared_data: Data) -> None:
    """And differ from epoch to epoch."""
    loader = af.StreamingDataLoader(read(shared_data, transform=random_of), batch_size=16)
    epochs = [{x for batch in loader for x in batch["random"].tolist()} for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [309, 309]
    assert epochs[0].isdisjoint(epochs[1])


@line(BY_HAND, "`generator=`")
def test_a_seed_takes_the_place_of_a_generator(shared_data: Data) -> None:
    """The order depends on nothing else."""
    dataset = read(shared_data, shuffle=True)
    one, two, three = (numbers(af.StreamingDataLoader(dataset, batch_size=16, seed=seed)) for seed in (1, 1, 2))
    assert one == two != three


@line(BY_HAND, "`sampler=`")
def test_a_choice_of_rows_is_a_subset_or_a_sampler_of_dataloader(shared_data: Data) -> None:
    """Both ways that the line names."""
    dataset = read(shared_data)
    assert numbers(af.StreamingDataLoader(dataset.subset([7, 3, 7]), batch_size=2)) == [7, 3, 7]
    assert numbers(af.DataLoader(dataset, sampler=[7, 3, 7], batch_size=2)) == [7, 3, 7]


@line(BY_HAND, "`torch.utils.data.random_split`")
def test_a_split_shares_no_row(shared_data: Data) -> None:
    """And leaves none out."""
    train, test = af.train_test_split(read(shared_data), [0.9, 0.1])
    assert sorted(int(row["n"]) for row in itertools.chain(train, test)) == list(range(309))


# -- all of them ---------------------------------------------------------------------------------------------------


def table_under(heading: str) -> list[str]:
    """Return the first cells of the first table under a heading of the page."""
    text = PAGE.read_text()
    rest = text[re.search(rf"^#+ {re.escape(heading)}$", text, re.MULTILINE).end() :]  # type: ignore[union-attr]
    found = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert found is not None
    return [row.split(" | ")[0].removeprefix("|").strip() for row in found[0].splitlines()[2:]]


@pytest.mark.parametrize("table", [LITDATA, ARGUMENTS, BY_HAND])
def test_every_line_has_a_test(table: str) -> None:
    """A line that nobody tests is a line that nobody knows to be true."""
    tested = [first_cell for heading, first_cell in _lines if heading == table]

    assert sorted(tested) == sorted(table_under(table))
