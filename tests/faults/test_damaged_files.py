"""Damage in the middle of a file is found, named, and takes nothing from the rows before it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antifreeze import CorruptFile, StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from conftest import Data

Write = Callable[..., "Data"]
BOUND_S = 60.0


def within(bound_s: float, function: Callable[[], Any]) -> Any:
    """Return what the function returns, or fail: a hang must not become the hang of the test run."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            result.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=call, name="the test's own", daemon=True)
    thread.start()
    thread.join(bound_s)
    assert not thread.is_alive(), f"nothing was returned or raised within {bound_s} s"
    if errors:
        raise errors[0]
    return result[0]


def damage(path: Path, group: int, column: str, how: str) -> None:
    """Damage the data page of a column: one flipped bit, or a page of nothing but zeros."""
    metadata = pq.read_metadata(path).row_group(group)
    names = [metadata.column(i).path_in_schema.split(".")[0] for i in range(metadata.num_columns)]
    chunk = metadata.column(names.index(column))
    begin = chunk.data_page_offset
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    with path.open("r+b") as file:
        if how == "bit":
            file.seek(end - 2)
            byte = file.read(1)[0]
            file.seek(end - 2)
            file.write(bytes([byte ^ 0x10]))
        else:
            file.seek(begin)
            file.write(b"\0" * (end - begin))


def read_until_error(data: Data, **options: Any) -> tuple[list[int], BaseException]:
    """Return the rows that came, each checked, and the error that ended them."""
    found: list[int] = []

    def read() -> BaseException:
        try:
            for batch in StreamingDataLoader(
                StreamingDataset(data.path, columns=options.pop("columns", None)), **options
            ):
                found.extend(data.check(batch))
        except Exception as error:  # noqa: BLE001 - the tests look at what it is
            return error
        raise AssertionError(f"no error; {len(found)} rows")

    return found, within(BOUND_S, read)


# The second file's third group; 90 rows stand in the first file and 46 in the groups before.
BEFORE = 90 + 46


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("column", ["n", "ids", "tag"])
@pytest.mark.parametrize("how", ["bit", "zeros"])
def test_a_damaged_page_is_named_and_the_rows_before_it_are_delivered(
    write_data: Write, workers: int, column: str, how: str
) -> None:
    """Page checksums are verified: a single bit is enough."""
    data = write_data(write_page_checksum=True)
    damage(data.files[1], 2, column, how)

    found, error = read_until_error(data, batch_size=1, num_workers=workers)

    assert isinstance(error, CorruptFile), repr(error)
    assert (error.file, error.row_group) == (str(data.files[1]), 2)
    assert str(data.files[1]) in str(error)
    assert "row group 2" in str(error)
    assert error.hint
    assert found == list(range(BEFORE))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("column", ["n", "ids"])
@pytest.mark.parametrize("options", [{}, {"write_page_checksum": True}, {"compression": "zstd"}], ids=str)
def test_a_page_that_cannot_be_decoded_is_named_without_checksums_too(
    write_data: Write, workers: int, column: str, options: dict[str, Any]
) -> None:
    """Zeros are no compressed page."""
    data = write_data(**options)
    damage(data.files[1], 2, column, "zeros")

    found, error = read_until_error(data, batch_size=10, num_workers=workers)

    assert isinstance(error, CorruptFile), repr(error)
    assert (error.file, error.row_group) == (str(data.files[1]), 2)
    # Batches are delivered whole: six rows are left over.
    assert found == list(range(BEFORE // 10 * 10))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("column", ["n", "ids"])
def test_damage_ends_a_shuffled_epoch_with_an_error_and_not_with_a_hang(
    write_data: Write, workers: int, column: str
) -> None:
    """Wherever the damaged rows were dealt to."""
    data = write_data(write_page_checksum=True)
    damage(data.files[1], 2, column, "bit")

    found, error = read_until_error(data, batch_size=4, num_workers=workers, shuffle=True)

    assert isinstance(error, CorruptFile), repr(error)
    assert (error.file, error.row_group) == (str(data.files[1]), 2)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_damage_ends_a_shuffled_epoch_of_many_windows(
    write_data: Write, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows before the damage are delivered, and those behind it wait for nobody."""
    monkeypatch.setattr("antifreeze.datasets._reading.WINDOW_NBYTES", 2000)
    data = write_data(*[100] * 20, write_page_checksum=True)
    damage(data.files[19], 4, "n", "bit")

    found, error = read_until_error(data, batch_size=4, num_workers=workers, shuffle=True, columns=["n", "label"])

    assert isinstance(error, CorruptFile), repr(error)
    assert error.file == str(data.files[19])
    assert len(found) == len(set(found))
    assert found, "the damaged group is the 100th of 100 in this epoch's order or near it; windows before it are good"


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_damage_deep_in_a_large_group_leaves_the_pieces_before_it(tmp_path: Path, workers: int) -> None:
    """A row group is decoded in pieces of 65,536 such rows; the third of them is damaged here."""
    path = tmp_path / "a.parquet"
    table = pa.table({"n": np.random.default_rng(0).permutation(250_000)})
    options = {"use_dictionary": False, "compression": "none", "data_page_size": 1 << 14, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=250_000, **options)
    with path.open("r+b") as file:
        file.seek(160_000 * 8)
        file.write(b"\xa5" * 8)
    found: list[int] = []

    def read() -> None:
        dataset = StreamingDataset(tmp_path, format="numpy")
        for batch in StreamingDataLoader(dataset, batch_size=1024, num_workers=workers):
            found.extend(batch["n"].tolist())

    with pytest.raises(CorruptFile) as caught:
        within(BOUND_S, read)

    assert 100_000 < caught.value.row <= 160_000
    assert len(found) == caught.value.row // 1024 * 1024
    assert found == table["n"].to_pylist()[: len(found)]


def test_a_damaged_group_does_no_harm_to_rows_that_are_asked_for_by_number(write_data: Write) -> None:
    """Row 5 of a good file can be had while another file is damaged; a row of the damaged group cannot."""
    data = write_data(write_page_checksum=True)
    damage(data.files[1], 2, "ids", "bit")
    dataset = StreamingDataset(data.path)

    assert int(dataset[5]["n"]) == 5
    with pytest.raises(CorruptFile) as caught:
        dataset[BEFORE]
    assert caught.value.row_group == 2
    assert int(dataset[308]["n"]) == 308


def test_the_rest_can_be_read_by_leaving_the_damage_out(write_data: Write) -> None:
    """What the hint says must work: an epoch that failed leaves the dataset usable."""
    data = write_data(write_page_checksum=True)
    damage(data.files[1], 2, "n", "bit")
    dataset = StreamingDataset(data.path)
    loader = StreamingDataLoader(dataset, batch_size=50, num_workers=2)
    for _ in range(2):
        with pytest.raises(CorruptFile):
            within(BOUND_S, lambda: list(loader))

    good = [*range(BEFORE), *range(BEFORE + 23, 309)]
    batches = within(BOUND_S, lambda: list(StreamingDataLoader(dataset.subset(good), batch_size=50, num_workers=2)))

    assert [n for batch in batches for n in data.check(batch)] == good


SWOLLEN = """
import resource, sys
import antifreeze as af

dataset = af.StreamingDataset(sys.argv[1], format="numpy", shuffle=sys.argv[2] == "shuffle")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = 0
for batch in af.StreamingDataLoader(dataset, batch_size=16, num_workers=2, memory_limit="64MB"):
    rows += len(batch["n"])
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize(("order", "small"), [("in order", 0), ("in order", 200), ("shuffle", 0)])
def test_a_small_file_that_becomes_large_stays_within_memory(tmp_path: Path, order: str, small: int) -> None:
    """A dictionary of one text is small in the file and in its footer, and is a gigabyte when it is decoded."""
    which = np.ones(20_000, np.int32)
    which[:small] = 0
    texts = pa.DictionaryArray.from_arrays(which, ["y", "x" * 50_000])
    table = pa.table({"n": np.arange(20_000), "text": texts})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)  # so that it is read as text
    command = [sys.executable, "-c", SWOLLEN, str(tmp_path), order]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    rows, grown_mb = map(int, done.stdout.split())

    assert rows == 20_000
    assert grown_mb < 400
