"""User code that fails is named with the file and row it failed on; its own error is the cause, and no thread stays."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from antifreeze import AntifreezeError, StreamingDataLoader, StreamingDataset, UserCodeError, batched

if TYPE_CHECKING:
    from conftest import Data

Row = dict[str, Any]
Read = Callable[..., tuple[list[int], BaseException]]
# Row 100 of the dataset is row 10 of its second file.
BAD, BAD_FILE, BAD_ROW = 100, 1, 10
FAULTS: dict[str, Callable[[], object]] = {}


def fault(function: Callable[[], object]) -> Callable[[], object]:
    FAULTS[function.__name__] = function
    return function


class Awkward(Exception):
    """An error that cannot be made again from its arguments, nor be shown."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__()

    def __str__(self) -> str:
        raise RuntimeError


@fault
def value_error() -> object:
    raise ValueError("a message of its own")


@fault
def stop_iteration() -> object:
    raise StopIteration


@fault
def stop_async_iteration() -> object:
    raise StopAsyncIteration


@fault
def index_error() -> object:
    return [][0]


@fault
def memory_error() -> object:
    raise MemoryError


def failing(make: Callable[[], object]) -> Callable[[Row], Row]:
    """Return a transform that fails on one row."""

    def transform(row: Row) -> Any:
        return make() if int(row["n"]) == BAD else row

    return transform


@pytest.fixture
def read(our_threads: Callable[[], list[str]]) -> Read:
    """Return a function that reads until it fails; no thread may be left while the error is still in hand."""

    def read_all(loader: StreamingDataLoader, data: Data) -> tuple[list[int], BaseException]:
        found: list[int] = []
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - the tests look at what it is
            found.extend(n for batch in loader for n in data.check(batch))
        assert our_threads() == []
        return found, caught.value

    return read_all


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, pytest.param(True, marks=pytest.mark.more)])
@pytest.mark.parametrize("name", FAULTS)
def test_a_transform_that_raises_is_named_by_file_and_row(
    shared_data: Data, workers: int, shuffle: bool, name: str, read: Read
) -> None:
    """StopIteration among them: it would end the epoch in silence."""
    dataset = StreamingDataset(shared_data.path, transform=failing(FAULTS[name]))

    found, error = read(StreamingDataLoader(dataset, batch_size=8, num_workers=workers, shuffle=shuffle), shared_data)

    assert isinstance(error, UserCodeError), repr(error)
    assert f"{shared_data.files[BAD_FILE]}, row {BAD_ROW} of the file" in str(error)
    with pytest.raises(type(error.__cause__)) as own:
        FAULTS[name]()
    assert type(own.value) is type(error.__cause__)
    assert BAD not in found
    assert len(found) == len(set(found)) == error.step * 8
    if not shuffle:
        assert found == list(range(96))


def test_an_error_that_cannot_be_shown_is_named_all_the_same(shared_data: Data, read: Read) -> None:
    """Its type and place are known, whatever its own text does."""

    def fail() -> object:
        raise Awkward(1, 2)

    dataset = StreamingDataset(shared_data.path, transform=failing(fail))

    _, error = read(StreamingDataLoader(dataset, batch_size=8), shared_data)

    assert isinstance(error, UserCodeError), repr(type(error))
    assert "Awkward" in str(error)
    assert f"{shared_data.files[BAD_FILE]}, row {BAD_ROW} of the file" in str(error)
    assert isinstance(error.__cause__, Awkward)


def test_the_original_error_and_its_line_can_be_seen(shared_data: Data, read: Read) -> None:
    """The traceback of the cause ends in the user's own function."""
    dataset = StreamingDataset(shared_data.path, transform=failing(value_error))

    _, error = read(StreamingDataLoader(dataset, batch_size=8), shared_data)

    cause = error.__cause__
    assert cause is not None
    assert "a message of its own" in str(error)
    frames, traceback = [], cause.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames[-1] == "value_error"


@pytest.mark.parametrize("workers", [0, 2])
def test_none_is_no_row(shared_data: Data, workers: int, read: Read) -> None:
    """A forgotten return would make a batch of nothing, or drop a sample in silence."""
    dataset = StreamingDataset(shared_data.path, transform=failing(lambda: None))

    found, error = read(StreamingDataLoader(dataset, batch_size=8, num_workers=workers), shared_data)

    assert isinstance(error, UserCodeError)
    assert "transform returned None" in str(error)
    assert f"{shared_data.files[BAD_FILE]}, row {BAD_ROW} of the file" in str(error)
    assert found == list(range(96))


@pytest.mark.parametrize("format_", ["torch", "numpy"])
def test_rows_of_different_shapes_are_named(shared_data: Data, format_: str, read: Read) -> None:
    """With the column, so that the line in the transform can be found."""

    def transform(row: Row) -> Row:
        return {"n": row["n"], "ids": row["ids"][: 5 if int(row["n"]) == BAD else 16]}

    dataset = StreamingDataset(shared_data.path, transform=transform, format=format_)

    found, error = read(StreamingDataLoader(dataset, batch_size=8, num_workers=2), shared_data)

    assert isinstance(error, AntifreezeError)
    text = str(error)
    assert '"ids"' in text
    assert "(16,)" in text
    assert "(5,)" in text
    # The first row of that batch is row 96 of the dataset, row 6 of the file.
    assert f"{shared_data.files[BAD_FILE]}, row 6 of the file" in text
    assert found == list(range(96))


@pytest.mark.parametrize("format_", ["torch", "numpy"])
@pytest.mark.parametrize("odd", [{"m": 1}, {}, 5, (1, 2)], ids=str)
def test_rows_with_different_members_are_an_error_of_ours(shared_data: Data, format_: str, odd: object) -> None:
    """And not a KeyError from the depths of a library."""
    dataset = StreamingDataset(shared_data.path, transform=failing(lambda: odd), format=format_)

    with pytest.raises(UserCodeError, match=re.escape(str(shared_data.files[BAD_FILE]))):
        list(StreamingDataLoader(dataset, batch_size=8))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_asks_the_program_to_end_ends_the_program_it_was_raised_in(
    shared_data: Data, workers: int, kind: type[BaseException], read: Read
) -> None:
    """Ctrl-C in a transform is Ctrl-C; in a worker it is an error like any other, and does not end the trainer."""

    def stop() -> object:
        raise kind

    dataset = StreamingDataset(shared_data.path, transform=failing(stop))

    found, error = read(StreamingDataLoader(dataset, batch_size=8, num_workers=workers), shared_data)

    assert type(error) is (UserCodeError if workers else kind)
    assert kind.__name__ in repr(error)
    assert found == list(range(96))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["raise", "stop", "none"])
@pytest.mark.parametrize("where", ["collate_fn", "transform"])
def test_code_for_whole_batches_is_named_by_the_batch(
    shared_data: Data, workers: int, how: str, where: str, read: Read
) -> None:
    """With the step and the first row of the batch: no single row is to blame."""
    make = {"raise": value_error, "stop": stop_iteration, "none": lambda: None}[how]

    def function(batch: Any) -> Any:
        n = [int(row["n"]) for row in batch] if where == "collate_fn" else batch["n"].tolist()
        return make() if BAD in n else {"n": torch.tensor(n)}

    chosen = {"collate_fn": function} if where == "collate_fn" else {}
    dataset = StreamingDataset(shared_data.path, transform=batched(function) if where == "transform" else None)
    found, error = read(StreamingDataLoader(dataset, batch_size=8, num_workers=workers, **chosen), shared_data)

    assert isinstance(error, UserCodeError)
    assert error.step == 12
    assert where in str(error)
    assert f"{shared_data.files[BAD_FILE]}, row 6 of the file" in str(error)
    assert found == list(range(96))


def test_a_marked_transform_that_drops_rows_does_not_break_collate_fn(shared_data: Data) -> None:
    """A filter over a batch is legal; the rows that are left are collated."""

    def keep_even(batch: Row) -> Row:
        return {"n": batch["n"][batch["n"] % 2 == 0]}

    dataset = StreamingDataset(shared_data.path, transform=batched(keep_even), format="numpy")

    plain = [int(n) for batch in StreamingDataLoader(dataset, batch_size=8) for n in batch["n"]]
    collated = [
        n
        for b in StreamingDataLoader(dataset, batch_size=8, collate_fn=lambda rows: [int(r["n"]) for r in rows])
        for n in b
    ]

    assert plain == collated == list(range(0, 309, 2))


@pytest.mark.parametrize("name", FAULTS)
def test_a_transform_that_raises_is_named_for_rows_by_number_too(shared_data: Data, name: str) -> None:
    """By slice and by number; the rows of a subset by where they stand in the files."""
    dataset = StreamingDataset(shared_data.path, transform=failing(FAULTS[name]))

    assert int(dataset[99]["n"]) == 99
    for get in (
        lambda: dataset[BAD],
        lambda: dataset[98:103],
        lambda: list(dataset),
        lambda: dataset.subset([5, BAD])[1],
        lambda: list(dataset.subset([5, BAD])),
    ):
        with pytest.raises(UserCodeError, match=re.escape(f"{shared_data.files[BAD_FILE]}, row {BAD_ROW}")):
            get()


def test_an_error_leaves_the_loader_usable(shared_data: Data, read: Read) -> None:
    """The next epoch starts afresh."""
    armed = True

    def transform(row: Row) -> Row:
        if armed and int(row["n"]) == BAD:
            raise ValueError
        return row

    loader = StreamingDataLoader(
        StreamingDataset(shared_data.path, transform=transform), batch_size=8, num_workers=2, shuffle=True
    )
    read(loader, shared_data)
    armed = False

    shared_data.check_all(loader)


def test_a_transform_may_change_its_row_and_keep_it(shared_data: Data) -> None:
    """Rows are the user's as batches are."""
    kept: list[Row] = []

    def transform(row: Row) -> Row:
        kept.append(row)
        row["ids"] += 1
        return row

    loader = StreamingDataLoader(
        StreamingDataset(shared_data.path, transform=transform, format="numpy"), batch_size=50, num_workers=2
    )

    for _ in range(2):
        for batch in loader:
            assert np.array_equal(batch["ids"], batch["n"][:, None] * 16 + np.arange(16) + 1)
    assert all(row["ids"][0] == row["n"] * 16 + 1 for row in kept)
