"""Batches: every row once, the same whoever decodes them, and nothing left when the loop ends."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from antifreeze import ConfigError, StreamingDataLoader, StreamingDataset, batched

if TYPE_CHECKING:
    from conftest import Data

Threads = Callable[[], list[str]]
Write = Callable[..., "Data"]
Batches = list[dict[str, Any]]


def as_bytes(batches: Batches) -> list[dict[str, object]]:
    """Return what can be compared bit for bit, with types and shapes."""

    def frozen(value: Any) -> object:
        if isinstance(value, list):
            return [frozen(item) for item in value]
        return (str(value.dtype), tuple(value.shape), np.asarray(value).tobytes()) if hasattr(value, "dtype") else value

    return [{name: frozen(value) for name, value in batch.items()} for batch in batches]


# -- every row once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 7, 64, 1000])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_every_row_comes_exactly_once(
    shared_data: Data, batch_size: int, workers: int, shuffle: bool, drop_last: bool
) -> None:
    """Whatever the size of a batch, the number of threads and the order; only drop_last leaves rows out."""
    dataset = StreamingDataset(shared_data.path, format="numpy")
    loader = StreamingDataLoader(
        dataset, batch_size=batch_size, num_workers=workers, shuffle=shuffle, drop_last=drop_last
    )

    batches = list(loader)

    found = [n for batch in batches for n in shared_data.check(batch)]
    kept = 309 // batch_size * batch_size if drop_last else 309
    assert len(found) == len(set(found)) == kept
    assert set(found) <= set(range(309))
    assert len(batches) == len(loader)
    assert all(len(batch["n"]) == batch_size for batch in batches[:-1])
    if not shuffle:
        assert found == list(range(kept))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [5, 64])
def test_the_batches_are_the_same_however_they_are_made(shared_data: Data, shuffle: bool, batch_size: int) -> None:
    """Threads and read-ahead change who decodes and when, never what."""
    dataset = StreamingDataset(shared_data.path)

    made = {
        (workers, ahead): as_bytes(
            list(
                StreamingDataLoader(
                    dataset, batch_size=batch_size, shuffle=shuffle, num_workers=workers, prefetch_factor=ahead
                )
            )
        )
        for workers, ahead in [(0, None), (1, None), (1, 1), (2, 1), (2, 7), (3, None), (5, 3)]
    }

    assert all(batches == made[0, None] for batches in made.values())


def test_the_order_does_not_depend_on_what_the_machine_has(shared_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that nobody has set comes from the machine, and two machines must give the same epoch."""
    dataset = StreamingDataset(shared_data.path)
    made = []
    for memory in (1 << 30, 1 << 40):
        monkeypatch.setattr("antifreeze.datasets._reading.machine_memory", lambda memory=memory: memory)
        made.append(as_bytes(list(StreamingDataLoader(dataset, batch_size=9, shuffle=True, num_workers=2))))

    assert made[0] == made[1]


@pytest.mark.parametrize("limit", ["1MB", "2MB", 8_000_000, "1GiB"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_memory_limit_gives_every_row_and_the_same_batches_for_any_number_of_threads(
    shared_data: Data, limit: int | str, shuffle: bool
) -> None:
    """A limit that the user sets may change a shuffled order, but only in the way that it says itself."""
    dataset = StreamingDataset(shared_data.path)

    made = [
        list(StreamingDataLoader(dataset, batch_size=10, shuffle=shuffle, num_workers=w, memory_limit=limit))
        for w in (0, 1, 3)
    ]

    shared_data.check_all(made[0])
    assert as_bytes(made[0]) == as_bytes(made[1]) == as_bytes(made[2])


@pytest.mark.parametrize(
    ("rows", "batch_size", "drop_last", "expected"),
    [(309, 1, False, 309), (309, 100, False, 4), (309, 100, True, 3), (309, 103, True, 3), (309, 310, True, 0)],
)
def test_the_length_is_known_before_the_first_batch(
    shared_data: Data, rows: int, batch_size: int, drop_last: bool, expected: int
) -> None:
    """Progress bars and schedules ask for it."""
    loader = StreamingDataLoader(StreamingDataset(shared_data.path), batch_size=batch_size, drop_last=drop_last)

    assert len(loader) == expected == len(list(loader))


def test_what_the_dataset_says_holds_unless_the_loader_says_otherwise(shared_data: Data) -> None:
    """Both take shuffle, seed and drop_last; the nearer word counts."""
    dataset = StreamingDataset(shared_data.path, shuffle=True, seed=3, drop_last=True, columns=["n"])
    inherits = StreamingDataLoader(dataset, batch_size=100)
    overrides = StreamingDataLoader(dataset, batch_size=100, shuffle=False, drop_last=False)
    reseeded = StreamingDataLoader(dataset, batch_size=100, seed=4)

    def flat(loader: StreamingDataLoader) -> list[int]:
        return [int(i) for batch in loader for i in batch["n"]]

    assert len(inherits) == 3
    assert flat(overrides) == list(range(309))
    first = flat(inherits)
    assert first != sorted(first)
    assert flat(reseeded) != first


# -- epochs --------------------------------------------------------------------------------------------------------


def order_of(loader: StreamingDataLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch["n"]]


@pytest.fixture
def shuffled(shared_data: Data) -> StreamingDataLoader:
    dataset = StreamingDataset(shared_data.path, columns=["n"], format="numpy")
    return StreamingDataLoader(dataset, batch_size=20, shuffle=True, num_workers=2)


def test_epochs_advance_by_themselves_and_can_be_set(shuffled: StreamingDataLoader) -> None:
    """The same epoch is the same order; another is another."""
    orders = [order_of(shuffled) for _ in range(3)]
    shuffled.set_epoch(1)

    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(309)) for order in orders)
    assert order_of(shuffled) == orders[1]
    assert order_of(shuffled) == orders[2]


def test_an_iterator_that_is_thrown_away_uses_up_no_epoch(shuffled: StreamingDataLoader, our_threads: Threads) -> None:
    """Frameworks make iterators that they never ask for a batch."""
    first = order_of(shuffled)
    shuffled.set_epoch(0)

    for _ in range(3):
        iter(shuffled)
    thrown = iter(shuffled)
    del thrown

    assert our_threads() == []
    assert order_of(shuffled) == first


def test_the_same_seed_gives_the_same_order_in_another_process(shared_data: Data) -> None:
    """Hash seeds, addresses and dictionaries must not reach the order."""
    code = (
        "import sys, antifreeze as af\n"
        "ds = af.StreamingDataset(sys.argv[1], format='numpy', columns=['n'])\n"
        "print([int(i) for b in af.StreamingDataLoader(ds, batch_size=7, shuffle=True, seed=5) for i in b['n']])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(shared_data.path)], capture_output=True, text=True, timeout=100, check=True
    )
    loader = StreamingDataLoader(StreamingDataset(shared_data.path), batch_size=64, shuffle=True, seed=5, num_workers=3)

    assert done.stdout.strip() == str(order_of(loader))


# -- life and death ------------------------------------------------------------------------------------------------


def test_nothing_is_started_at_construction(shared_data: Data) -> None:
    """Seed 002: a loader that starts workers when it is made hangs programs that never use it."""
    before = set(threading.enumerate())
    children = multiprocessing.active_children()

    loader = StreamingDataLoader(StreamingDataset(shared_data.path), batch_size=4, num_workers=4, timeout=5)
    len(loader), repr(loader), iter(loader)

    assert set(threading.enumerate()) == before
    assert multiprocessing.active_children() == children


def test_threads_run_between_the_first_and_the_last_batch_only(shared_data: Data, our_threads: Threads) -> None:
    """Everything starts with the iteration and ends with it."""
    iterator = iter(StreamingDataLoader(StreamingDataset(shared_data.path), batch_size=300, num_workers=3))
    assert our_threads() == []

    next(iterator)
    assert len(list(iterator)) == 1

    assert our_threads() == []


def small_steps(data: Data, **options: Any) -> StreamingDataLoader:
    """Return a loader whose threads cannot be done early: there is more than they may read ahead."""
    chosen = {"batch_size": 2, "num_workers": 3, "prefetch_factor": 1} | options
    return StreamingDataLoader(StreamingDataset(data.path), **chosen)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_early_break_leaves_no_thread(shared_data: Data, shuffle: bool, our_threads: Threads) -> None:
    """At once: by the end of the statement, not by the next garbage collection."""
    gc.disable()
    try:
        for _ in small_steps(shared_data, shuffle=shuffle):
            break
        assert our_threads() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_exception_in_the_loop_leaves_no_thread(shared_data: Data, shuffle: bool, our_threads: Threads) -> None:
    """The error of the user's loop comes out as it is."""
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the loop is what is tested
            for _ in small_steps(shared_data, shuffle=shuffle):
                _ = 1 // 0
        assert our_threads() == []
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["del loader", "del iterator", "close", "return"])
def test_an_epoch_that_is_given_up_leaves_no_thread(shared_data: Data, how: str, our_threads: Threads) -> None:
    """Whichever end lets go first."""

    def in_a_function() -> dict[str, Any]:
        for batch in small_steps(shared_data):
            return batch
        raise AssertionError

    gc.disable()
    try:
        loader = small_steps(shared_data)
        iterator: Any = iter(loader)
        next(iterator)
        if how == "del loader":
            del loader
            assert sum(len(batch["n"]) for batch in iterator) == 307
        elif how == "del iterator":
            del iterator
        elif how == "close":
            iterator.close()
            assert list(iterator) == []
        else:
            del iterator
            in_a_function()
        assert our_threads() == []
    finally:
        gc.enable()


def test_deleting_loader_and_dataset_lets_go_of_both(shared_data: Data) -> None:
    """A loader for each epoch must not pile up datasets, files and memory."""
    dataset = StreamingDataset(shared_data.path)
    loader = StreamingDataLoader(dataset, batch_size=50, num_workers=2)
    for _ in loader:
        break
    list(loader)
    references = weakref.ref(dataset), weakref.ref(loader)

    del dataset, loader
    gc.collect()

    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterators_at_once_are_two_epochs(shared_data: Data, workers: int) -> None:
    """Interleaved, nested, and one given up while the other goes on."""
    loader = small_steps(shared_data, num_workers=workers, batch_size=30, shuffle=True)

    first, second, third = iter(loader), iter(loader), iter(loader)
    next(third)
    pairs = list(zip(first, second, strict=True))
    del third

    one, two = (shared_data.check_all(batches) for batches in zip(*pairs, strict=True))
    assert one != two


def test_a_loader_can_be_iterated_inside_its_own_loop(shared_data: Data) -> None:
    """Validation in the middle of training, by mistake or not."""
    loader = small_steps(shared_data, batch_size=100)

    sizes = [sum(len(inner["n"]) for inner in loader) for _ in loader]

    assert sizes == [309] * 4


def test_an_iterator_that_has_ended_stays_at_its_end(shared_data: Data, our_threads: Threads) -> None:
    """It starts no threads again."""
    iterator = iter(small_steps(shared_data))
    assert len(list(iterator)) == 155

    assert list(iterator) == []
    assert next(iterator, None) is None
    assert our_threads() == []


def test_iterating_twice_gives_everything_twice(shared_data: Data) -> None:
    """And needs no second loader."""
    loader = small_steps(shared_data)

    assert shared_data.check_all(loader) == shared_data.check_all(loader)


# -- batches belong to the user ------------------------------------------------------------------------------------


def spoil(value: Any) -> None:
    """Overwrite everything that can be overwritten."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
    elif isinstance(value, list):
        for inner in value:
            spoil(inner)
        value[:] = ["spoilt"] * len(value)
    elif isinstance(value, torch.Tensor):
        value.fill_(1) if value.dtype == torch.bool else value.fill_(-1)
    elif isinstance(value, np.ndarray):
        value[...] = -1 if value.dtype.kind != "M" else np.datetime64("NaT")


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of every kind of memory: plain, bits, dictionary, ragged, nested, texts, structs, times."""
    root = tmp_path_factory.mktemp("varied")
    rng = np.random.default_rng(0)
    for file in range(3):
        size = 400
        numbers = np.arange(file * size, file * size + size)
        table = pa.table(
            {
                "n": numbers,
                "few": numbers % 3,
                "flag": numbers % 2 == 0,
                "ids": pa.array(list(rng.integers(0, 99, (size, 8), np.int32)), pa.list_(pa.int32(), 8)),
                "ragged": [list(range(i % 6)) for i in numbers],
                "nested": [[[int(i)] * (j + 1) for j in range(i % 3)] for i in numbers],
                "texts": [[f"{i}"] * (i % 3) for i in numbers],
                "text": [f"text {i}" for i in numbers],
                "struct": [{"a": int(i), "b": [int(i)] * 2} for i in numbers],
                "time": pa.array(numbers * 1000, pa.timestamp("us")),
                "half": pa.array(numbers.astype(np.float16)),
            }
        )
        pq.write_table(table, root / f"{file}.parquet", row_group_size=150)
    return root


@pytest.mark.parametrize("format_", ["torch", "numpy"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [16, 5000, *(pytest.param(size, marks=pytest.mark.more) for size in (1, 150))])
def test_changing_batches_in_place_reaches_nothing_else(
    varied: Path, format_: str, shuffle: bool, workers: int, batch_size: int
) -> None:
    """As masking does: each batch is overwritten as it comes, and all that come after are as they should be."""
    dataset = StreamingDataset(varied, format=format_)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "num_workers": workers,
        "memory_limit": "4MB",
    }
    expected = as_bytes([flat(batch) for batch in StreamingDataLoader(dataset, **options)])

    kept = []
    for batch in StreamingDataLoader(dataset, **options):
        kept.append(as_bytes([flat(batch)])[0])
        spoil(batch)
    assert kept == expected

    whole = list(StreamingDataLoader(dataset, **options))
    for batch in whole[::2]:
        spoil(batch)
    assert as_bytes([flat(batch) for batch in whole[1::2]]) == expected[1::2]


def flat(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch with the members of structs beside the other columns."""
    inner = {f"struct.{name}": value for name, value in batch["struct"].items()}
    return {name: value for name, value in batch.items() if name != "struct"} | inner


def test_all_of_a_batch_is_writable(varied: Path) -> None:
    """No read-only arrays, and no warning about them."""
    for batch in StreamingDataLoader(StreamingDataset(varied, format="numpy"), batch_size=64, num_workers=2):
        arrays = [value for value in flat(batch).values() if isinstance(value, np.ndarray)]
        assert len(arrays) >= 7
        assert all(array.flags.writeable for array in [*arrays, *batch["ragged"]])


def test_large_batches_do_not_share_recycled_memory(tmp_path: Path) -> None:
    """Memory of a megabyte and more is lent again, but only when the last tensor over it is gone."""
    rows, width = 3000, 512
    for file in range(4):
        ids = (np.arange(rows, dtype=np.int32) + file * rows)[:, None].repeat(width, 1)
        table = pa.table({"ids": pa.FixedSizeListArray.from_arrays(ids.ravel(), width)})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=1000)
    dataset = StreamingDataset(tmp_path)
    for shuffle, workers in itertools.product([False, True], [0, 2]):
        loader = StreamingDataLoader(dataset, batch_size=700, shuffle=shuffle, num_workers=workers, memory_limit="16MB")
        corners: list[tuple[int, torch.Tensor]] = []
        for batch in loader:
            # A view of one column of a batch must keep all of its memory from being lent again.
            corners += [(int(row[0]), row[-1:]) for row in batch["ids"][::50]]
            del batch
        assert all(int(view) == value for value, view in corners)
        whole = [batch["ids"] for batch in loader]
        assert sorted(torch.cat(whole)[:, 7].tolist()) == list(range(4 * rows))


# -- memory --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three row groups of 8 MB each."""
    root = tmp_path_factory.mktemp("wide")
    numbers = np.arange(6000)
    ids = (numbers[:, None] + np.arange(1024)).astype(np.int32)
    table = pa.table({"ids": pa.FixedSizeListArray.from_arrays(ids.ravel(), 1024), "n": numbers})
    pq.write_table(table, root / "a.parquet", row_group_size=2000)
    return root


@pytest.mark.parametrize("limit", ["1MB", "2MB", "8MB"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_keeping_every_batch_never_stops_the_loader(wide: Path, limit: str, shuffle: bool, workers: int) -> None:
    """Batches that the user keeps are not counted; and a row group far beyond the limit is delivered piece by piece."""
    dataset = StreamingDataset(wide, format="numpy")
    loader = StreamingDataLoader(
        dataset, batch_size=100, shuffle=shuffle, num_workers=workers, memory_limit=limit, timeout=30
    )

    kept = list(loader)

    assert len(kept) == 60
    for batch in kept:
        assert np.array_equal(batch["ids"], batch["n"][:, None] + np.arange(1024))
    found = np.concatenate([batch["n"] for batch in kept]).tolist()
    assert sorted(found) == list(range(6000))
    assert (found == list(range(6000))) is not shuffle


PEAK = """
import resource, sys
import antifreeze as af

dataset = af.StreamingDataset(sys.argv[1], format="numpy")
options = dict(batch_size=64, num_workers=2, shuffle=sys.argv[2] == "True", memory_limit="48MB")
for _ in af.StreamingDataLoader(dataset.subset(slice(0, 64)), **options):
    pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(len(batch["n"]) for batch in af.StreamingDataLoader(dataset, **options))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_peak_stays_near_the_limit(tmp_path: Path, shuffle: bool) -> None:
    """200 MB in row groups of 100 MB; the bar allows 64 MB above the limit."""
    ids = np.arange(50_000 * 1024, dtype=np.int32)
    table = pa.table({"ids": pa.FixedSizeListArray.from_arrays(ids, 1024), "n": np.arange(50_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=25_000, use_dictionary=False)

    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), str(shuffle)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    rows, above = map(int, done.stdout.split())
    assert rows == 50_000
    assert above < 48_000_000 + 64_000_000, f"{above / 1e6:.0f} MB above the process before the epoch"


# -- user code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_fn_gets_a_list_of_rows(shared_data: Data, workers: int) -> None:
    """As in torch: a list of dicts, and what it returns is the batch."""

    def collate(rows: list[dict[str, Any]]) -> tuple[int, list[int], str]:
        return len(rows), [int(row["n"]) for row in rows], str((type(rows), {type(row) for row in rows}))

    batches = list(
        StreamingDataLoader(StreamingDataset(shared_data.path), batch_size=100, num_workers=workers, collate_fn=collate)
    )

    assert [size for size, _, _ in batches] == [100, 100, 100, 9]
    assert [n for _, found, _ in batches for n in found] == list(range(309))
    assert {kinds for _, _, kinds in batches} == {str((list, {dict}))}


def test_collate_fn_gets_what_the_transform_made(shared_data: Data) -> None:
    """Row by row first, then together; a marked transform sees the batch before it becomes rows."""
    collate = StreamingDataLoader(
        StreamingDataset(shared_data.path, transform=lambda row: int(row["n"]) * 2), batch_size=200, collate_fn=sum
    )
    marked = StreamingDataLoader(
        StreamingDataset(shared_data.path, transform=batched(lambda batch: {"n": batch["n"] * 2})),
        batch_size=200,
        collate_fn=lambda rows: sum(int(row["n"]) for row in rows),
    )

    assert list(collate) == list(marked) == [sum(range(200)) * 2, sum(range(200, 309)) * 2]


def roll(row: dict[str, Any]) -> dict[str, Any]:
    """Return all the dice that user code throws."""
    return {
        "n": row["n"],
        "python": random.random(),  # noqa: S311
        "numpy": float(np.random.rand()),
        "torch": float(torch.rand(())),
    }


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_numbers_in_a_transform_belong_to_the_step(shared_data: Data, shuffle: bool) -> None:
    """Neither the number of threads nor what the trainer did before changes them; another epoch does."""
    dataset = StreamingDataset(shared_data.path, transform=roll)
    made = []
    for workers, ahead in [(0, None), (1, 1), (3, 4)]:
        random.seed(workers)
        np.random.seed(workers)
        torch.manual_seed(workers)
        loader = StreamingDataLoader(
            dataset, batch_size=50, shuffle=shuffle, num_workers=workers, prefetch_factor=ahead
        )
        made.append(as_bytes(list(loader)))
        other = as_bytes(list(loader))
        assert [batch["python"] for batch in made[-1]] != [batch["python"] for batch in other]

    assert made[0] == made[1] == made[2]
    dice = [float(x) for batch in StreamingDataLoader(dataset, batch_size=50) for x in batch["python"]]
    assert len(set(dice)) == 309


def test_the_trainers_own_random_numbers_are_untouched(shared_data: Data) -> None:
    """Dropout and initialisation must not change because a transform throws dice."""
    loader = StreamingDataLoader(StreamingDataset(shared_data.path, transform=roll), batch_size=50, num_workers=2)

    def state() -> tuple[object, ...]:
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()

    before = state()
    for _ in loader:
        assert state() == before
    for _ in loader:
        break

    assert state() == before


def test_a_transform_that_fails_leaves_the_trainers_random_numbers_untouched(shared_data: Data) -> None:
    """An error is no excuse."""

    def fail(row: dict[str, Any]) -> None:
        random.random()  # noqa: S311
        raise ValueError

    before = random.getstate()
    with pytest.raises(Exception, match="transform raised ValueError"):
        list(StreamingDataLoader(StreamingDataset(shared_data.path, transform=fail), batch_size=50))

    assert random.getstate() == before


def test_a_transform_costs_no_more_for_a_large_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To name a row is work of the size of its window; it must be done for a row that fails, not for every row."""
    from antifreeze.plan import Interleaved

    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a.parquet")
    calls: list[int] = []
    places = Interleaved.positions
    monkeypatch.setattr(Interleaved, "positions", lambda self, round_: calls.append(round_) or places(self, round_))

    dataset = StreamingDataset(tmp_path, transform=lambda row: row)
    assert sum(len(b["n"]) for b in StreamingDataLoader(dataset, batch_size=10, shuffle=True)) == 1000

    assert len(calls) < 10, f"{len(calls)} permutations were computed for 1000 rows of one window"


# -- compatibility -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_pin_memory_without_an_accelerator_changes_nothing(shared_data: Data, format_: str) -> None:
    """And warns of nothing: warnings are errors here."""
    dataset = StreamingDataset(shared_data.path, format=format_, columns=["n", "ids", "tag"])

    batches = list(StreamingDataLoader(dataset, batch_size=100, num_workers=1, pin_memory=True))

    assert sum(len(b["n"] if format_ != "arrow" else b) for b in batches) == 309


CONTEXTS: dict[str, Any] = {name: name for name in ("fork", "spawn", "forkserver")}
CONTEXTS |= {f"context {name}": multiprocessing.get_context(name) for name in ("fork", "spawn", "forkserver")}
CONTEXTS |= {
    "default context": multiprocessing.get_context(),
    "torch's context": torch.multiprocessing.get_context("spawn"),
    "none": None,
}


@pytest.mark.parametrize("name", CONTEXTS)
def test_every_start_method_is_accepted_and_starts_nothing(shared_data: Data, name: str, our_threads: Threads) -> None:
    """Invariant 1: the user's process is never forked."""
    loader = StreamingDataLoader(
        StreamingDataset(shared_data.path),
        batch_size=100,
        num_workers=2,
        multiprocessing_context=CONTEXTS[name],
        persistent_workers=True,
    )

    for batch in loader:
        shared_data.check(batch)
        assert multiprocessing.active_children() == []
    assert our_threads() == []


class Index:
    """An integer by its meaning."""

    def __index__(self) -> int:
        return 3


def test_whatever_means_an_integer_is_one(shared_data: Data) -> None:
    """Configurations come from NumPy and torch too."""
    dataset = StreamingDataset(shared_data.path)

    assert StreamingDataLoader(dataset, batch_size=np.int64(8)).batch_size == 8  # type: ignore[arg-type]
    assert StreamingDataLoader(dataset, batch_size=Index()).batch_size == 3  # type: ignore[arg-type]
    assert len(StreamingDataLoader(dataset, 100, True)) == 4


BAD = [
    *[("batch_size", value) for value in (0, -1, 1.5, "8", True, None, [8], float("nan"))],
    *[("num_workers", value) for value in (-1, 0.5, "2", None, True)],
    *[("prefetch_factor", value) for value in (0, -1, 1.5, "2", False)],
    *[("timeout", value) for value in (-1, -0.1, "5", None, float("nan"), True)],
    *[("memory_limit", value) for value in ("lots", 0, -1, "", "0MB", "1 banana", 1000, 1.5, True, [], "-5GB")],
    *[("collate_fn", value) for value in (3, "sum", [])],
    *[("seed", value) for value in ("x", 1.5, True)],
    *[("multiprocessing_context", value) for value in ("thread", 3, "Fork", object())],
    *[("dataset", value) for value in ([1, 2, 3], None, "data", {})],
    *[("shuffle", value) for value in ("yes", "False")],
    *[("drop_last", value) for value in ("no", "False")],
]


@pytest.mark.parametrize(("argument", "value"), BAD, ids=[f"{name}={value!r}"[:40] for name, value in BAD])
def test_a_bad_argument_is_named_at_construction(shared_data: Data, argument: str, value: Any) -> None:
    """Not in the middle of an epoch, and not as a TypeError from somewhere below."""
    options: dict[str, Any] = {"dataset": StreamingDataset(shared_data.path)} | {argument: value}

    with pytest.raises(ConfigError, match=argument) as caught:
        StreamingDataLoader(**options)
    assert caught.value.argument == argument
    assert caught.value.hint


def test_a_negative_epoch_is_refused(shared_data: Data) -> None:
    """An epoch is a number from 0 on."""
    loader = StreamingDataLoader(StreamingDataset(shared_data.path))
    for epoch in (-1, 1.5, "2"):
        with pytest.raises(ConfigError) as caught:
            loader.set_epoch(epoch)  # type: ignore[arg-type]
        assert caught.value.argument == "epoch"


def test_an_empty_dataset_has_no_batches(tmp_path: Path) -> None:
    """Files without rows are files."""
    pq.write_table(
        pa.table({"n": pa.array([], pa.int64()), "ids": pa.array([], pa.list_(pa.int32()))}), tmp_path / "a.parquet"
    )
    dataset = StreamingDataset(tmp_path)

    assert len(dataset) == len(dataset[:]) == 0
    for shuffle, workers in itertools.product([False, True], [0, 2]):
        loader = StreamingDataLoader(dataset, batch_size=4, shuffle=shuffle, num_workers=workers)
        assert len(loader) == len(list(loader)) == 0


def test_a_read_only_directory_is_fine(data: Data) -> None:
    """Nothing is written next to the data."""
    names = sorted(path.name for path in data.path.iterdir())
    data.path.chmod(0o555)
    try:
        data.check_all(StreamingDataLoader(StreamingDataset(data.path), batch_size=50, num_workers=1))
        assert sorted(path.name for path in data.path.iterdir()) == names
    finally:
        data.path.chmod(0o755)


def batches_of(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


def test_rows_keep_coming_while_the_user_is_slow(shared_data: Data) -> None:
    """A stall is a worker that does not move, never a user that takes his time."""
    iterator = iter(small_steps(shared_data, timeout=2.0, batch_size=50))
    first = batches_of(iterator, 1)
    threading.Event().wait(3.0)  # longer than the limit; not a synchronisation

    shared_data.check_all([*first, *iterator])
