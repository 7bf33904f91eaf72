"""Files that change, shrink or vanish under a running epoch are named; rows are never mixed from two versions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import CorruptFile, SourceChanged, StreamingDataLoader, StreamingDataset, index_parquet_dataset

if TYPE_CHECKING:
    from conftest import Data

Change = Callable[[Path], None]
BOUND_S = 60.0


def delete(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def fewer_groups(path: Path) -> None:
    rewrite(path, pq.read_table(path).slice(0, 30))


def smaller_groups(path: Path) -> None:
    pq.write_table(pq.read_table(path), f"{path}.new", row_group_size=11)
    Path(f"{path}.new").replace(path)


def more_rows(path: Path) -> None:
    table = pq.read_table(path)
    rewrite(path, pa.concat_tables([table, table]))


def other_rows(path: Path) -> None:
    table = pq.read_table(path)
    rewrite(path, table.take(list(range(table.num_rows))[::-1]))


def other_columns(path: Path) -> None:
    rewrite(path, pq.read_table(path).rename_columns(["ids", "label", "score", "tag", "m"]))


def other_type(path: Path) -> None:
    table = pq.read_table(path)
    rewrite(path, table.set_column(4, "n", table["n"].cast(pa.string())))


def rewrite(path: Path, table: Any) -> None:
    """Replace a file as careful programs do: whoever has it open keeps the old one."""
    pq.write_table(table, f"{path}.new", row_group_size=23)
    Path(f"{path}.new").replace(path)


def foreign(path: Path) -> None:
    path.write_bytes(b"no parquet at all" * 100)


CHANGES = [
    delete,
    truncate,
    empty,
    fewer_groups,
    smaller_groups,
    more_rows,
    other_rows,
    other_columns,
    other_type,
    foreign,
]


def read_on(data: Data, batches: Any) -> tuple[list[int], BaseException | None]:
    """Return the rows that still come, each checked, and the error that ends them."""
    found: list[int] = []
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for batch in batches:
                found.extend(data.check(batch))
        except Exception as error:  # noqa: BLE001 - the tests look at what it is
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    assert not thread.is_alive()
    return found, errors[0] if errors else None


def is_named(error: BaseException | None, path: Path) -> None:
    assert isinstance(error, (SourceChanged, CorruptFile)), repr(error)
    assert str(path) in str(error)
    assert error.hint
    if isinstance(error, SourceChanged):
        assert str(path) in [*error.changed, *error.vanished]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_after_the_dataset_was_opened_is_noticed(data: Data, change: Change, workers: int) -> None:
    """Before the first batch was asked for."""
    dataset = StreamingDataset(data.path, columns=["n", "label"])
    change(data.files[1])

    found, error = read_on(data, StreamingDataLoader(dataset, batch_size=1, num_workers=workers))

    is_named(error, data.files[1])
    assert found == list(range(90))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_in_the_middle_of_an_epoch_is_noticed(data: Data, change: Change, workers: int) -> None:
    """Rows of the old file may have been read ahead; rows of a new one never come."""
    dataset = StreamingDataset(data.path, columns=["n", "label"])
    iterator = iter(StreamingDataLoader(dataset, batch_size=1, num_workers=workers, prefetch_factor=1))
    first = data.check(next(iterator))
    change(data.files[2])

    found, error = read_on(data, iterator)

    is_named(error, data.files[2])
    assert first + found == list(range(193))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_under_a_shuffled_epoch_gives_no_wrong_row(
    data: Data, change: Change, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was open when the file changed: each row that comes is a row of the dataset, and comes once."""
    monkeypatch.setattr("antifreeze.datasets._reading.WINDOW_NBYTES", 400)
    dataset = StreamingDataset(data.path, columns=["n", "label"])
    iterator = iter(StreamingDataLoader(dataset, batch_size=1, num_workers=workers, shuffle=True, prefetch_factor=1))
    found = data.check(next(iterator))
    change(data.files[2])

    more, error = read_on(data, iterator)

    found += more
    assert len(found) == len(set(found))
    assert set(found) <= set(range(309))
    if len(found) < 309:
        is_named(error, data.files[2])


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_by_rows_that_are_asked_for_by_number(data: Data, change: Change) -> None:
    """Not a row of another file, and not an error of a library below."""
    dataset = StreamingDataset(data.path, columns=["n", "label"])
    assert int(dataset[100]["n"]) == 100
    change(data.files[2])

    with pytest.raises((SourceChanged, CorruptFile)) as caught:
        dataset[200]
    is_named(caught.value, data.files[2])
    assert int(dataset[100]["n"]) == 100


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_since_indexing_is_noticed_when_the_dataset_is_opened(data: Data, change: Change) -> None:
    """The manifest knows each file's size and time."""
    index_parquet_dataset(data.path)
    change(data.files[1])

    with pytest.raises(SourceChanged) as caught:
        StreamingDataset(data.path)
    assert "part-2.parquet" in str(caught.value)


def test_a_file_that_appears_in_the_middle_of_an_epoch_is_left_for_the_next_dataset(data: Data) -> None:
    """The rows of a dataset are those it had when it was opened."""
    dataset = StreamingDataset(data.path)
    iterator = iter(StreamingDataLoader(dataset, batch_size=50, num_workers=1))
    first = next(iterator)
    pq.write_table(pq.read_table(data.files[0]), data.path / "part-0.parquet")

    data.check_all([first, *iterator])
    data.check_all(StreamingDataLoader(dataset, batch_size=50))


def test_a_file_that_is_truncated_while_it_is_open_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    """A memory-mapped file would kill the process with SIGBUS here."""
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "compression": "none", "row_group_size": 2_000_000}
    pq.write_table(pa.table({"n": range(2_000_000)}), path, **options)
    iterator = iter(StreamingDataLoader(StreamingDataset(tmp_path, format="numpy"), batch_size=1000, num_workers=0))
    found = next(iterator)["n"].tolist()
    os.truncate(path, 1000)

    with pytest.raises((CorruptFile, SourceChanged)) as caught:
        found.extend(n for batch in iterator for n in batch["n"].tolist())

    assert str(path) in str(caught.value)
    assert found == list(range(len(found)))
