"""``DataLoader`` over datasets with ``__getitems__``: the batch is passed on as in torch, and so are errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import Items, Made, check, ours

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")

BOTH = pytest.mark.parametrize("num_workers", [0, 2])


class Bulk(Items):
    """Gives the samples of a batch in a form that a function makes of their indices."""

    def __init__(self, length: int, form: Callable[[list[int]], Any]) -> None:
        super().__init__(range(length))
        self.form = form

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("torch prefers __getitems__")

    def __getitems__(self, indices: list[int]) -> Any:
        return self.form(indices)


class Columns:
    """Columns that are neither a list nor true or false, as a tensordict or a table."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __bool__(self) -> bool:
        raise AssertionError("converting a batch to a bool is ambiguous")

    def __len__(self) -> int:
        raise AssertionError("has no length")

    def __iter__(self) -> Any:
        raise AssertionError("iterating it would go over the rows")


def as_is(batch: Any) -> Any:
    return batch


FORMS: dict[str, Callable[[list[int]], Any]] = {
    "a dict of columns": lambda indices: {"x": torch.tensor(indices), "y": torch.tensor(indices) * 2},
    "a tensor": lambda indices: torch.tensor(indices) * 10,
    "an array": lambda indices: np.asarray(indices) * 10,
    "a tuple": lambda indices: (torch.tensor(indices), "text"),
    "a list": lambda indices: [i * 10 for i in indices],
    "a text": lambda indices: ",".join(map(str, indices)),
    "nothing": lambda _: None,
    "an empty list": lambda _: [],
    "fewer samples": lambda indices: indices[:1],
}


@pytest.mark.parametrize("name", FORMS)
def test_what_getitems_returns_reaches_collate_fn_unchanged(name: str) -> None:
    """Whatever it is: a list is what most return, not what all do."""
    check(lambda: {"dataset": Bulk(7, FORMS[name]), "batch_size": 3, "collate_fn": as_is})


@BOTH
def test_a_batch_that_is_neither_true_nor_false_is_passed_on(num_workers: int) -> None:
    """Nothing is asked of it: it may refuse to have a length, a truth or an iterator."""
    dataset = Bulk(6, lambda indices: Columns(torch.tensor(indices)))
    loader = ours(dataset, num_workers, batch_size=3, collate_fn=lambda batch: batch.rows)

    assert [rows.tolist() for rows in loader] == [[0, 1, 2], [3, 4, 5]]
    assert loader.report(io.StringIO()).delivered_samples == 6


@pytest.mark.parametrize("name", ["a list", "an array", "a tuple of arrays", "rows of an array"])
def test_the_default_collate_takes_what_torchs_takes(name: str) -> None:
    """It indexes and iterates the batch, whatever type that has."""
    forms: dict[str, Callable[[list[int]], Any]] = FORMS | {
        "a tuple of arrays": lambda indices: tuple(np.full(3, i) for i in indices),
        "rows of an array": lambda indices: np.repeat(np.asarray(indices, np.float32)[:, None], 4, 1),
    }
    check(lambda: {"dataset": Bulk(7, forms[name]), "batch_size": 3})


@BOTH
@pytest.mark.parametrize("name", ["a dict of columns", "nothing"])
def test_the_default_collate_fails_where_torchs_fails(name: str, num_workers: int) -> None:
    """With the same type of error, which says that it comes from collating."""
    with pytest.raises(Exception) as expected:  # noqa: PT011  its type is what is compared
        list(tud.DataLoader(Bulk(7, FORMS[name]), batch_size=3))
    with pytest.raises(expected.type) as caught:
        list(ours(Bulk(7, FORMS[name]), num_workers, batch_size=3))
    assert isinstance(caught.value, af.UserCodeError)
    assert str(caught.value).startswith("collating raised")


@BOTH
def test_an_error_in_getitems_is_raised_and_names_the_samples(num_workers: int) -> None:
    """Reading them one by one instead would hide a bug, and may give other samples."""

    class Broken(Made):
        def __getitems__(self, indices: list[int]) -> Any:
            if 4 in indices:
                raise ValueError("no row 4")
            return [self.make(i) for i in indices]

    loader = ours(Broken(7, int), num_workers, batch_size=3)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no row 4") as caught:
        next(batches)
    assert isinstance(caught.value, af.UserCodeError)
    assert str(caught.value).startswith("dataset.__getitems__ raised ValueError: no row 4")
    assert "batch 1, samples 3, 4, 5 of Broken" in str(caught.value)
    assert next(batches).tolist() == [6]  # as in torch, the batches after it can still be had


@BOTH
def test_an_error_in_a_large_batch_names_some_of_its_samples(num_workers: int) -> None:
    """An error message must stay readable."""

    def fail(_: Any) -> Any:
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        list(ours(Bulk(1000, fail), num_workers, batch_size=1000))
    assert "samples 0, 1, 2, 3, 4, 5, 6, 7 and 992 more of Bulk" in str(caught.value)


@BOTH
def test_getitems_is_not_used_where_samples_can_be_skipped(num_workers: int) -> None:
    """Which sample made the whole batch fail would not be known."""

    class Twice(Made):
        def __getitems__(self, indices: list[int]) -> Any:
            raise AssertionError("samples are asked for one by one")

    def make(i: int) -> int:
        if i == 4:
            raise ValueError("bad 4")
        return i

    for on_error in ("skip", lambda _: "skip"):
        loader = ours(Twice(7, make), num_workers, batch_size=3, on_error=on_error)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 5], [6]]
        report = loader.report(io.StringIO())
        assert [skip.sample.split(" of ")[0] for skip in report.skipped] == ["sample 4"]
        assert report.delivered_samples == 6


@BOTH
def test_a_dataset_that_has_only_getitems_can_be_read_with_skip(num_workers: int) -> None:
    """There is no other way to ask it; what fails is then the whole batch, which cannot be skipped."""

    class Only(tud.Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitems__(self, indices: list[int]) -> Any:
            if 5 in indices:
                raise ValueError("bad 5")
            return indices

    batches = iter(ours(Only(), num_workers, batch_size=3, on_error="skip"))
    assert next(batches).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="bad 5"):
        next(batches)


@BOTH
def test_getitems_is_not_used_without_batches(num_workers: int) -> None:
    """With ``batch_size=None`` the dataset is asked for what the sampler gives, as it is."""

    class Rows(Items):
        def __getitem__(self, index: Any) -> Any:
            return {"rows": torch.tensor(index)}

        def __getitems__(self, indices: Any) -> Any:
            raise AssertionError("torch does not ask it")

    sampler = tud.BatchSampler(tud.SequentialSampler(range(5)), 2, drop_last=False)
    loader = ours(Rows(range(5)), num_workers, batch_size=None, sampler=sampler)

    assert [batch["rows"].tolist() for batch in loader] == [[0, 1], [2, 3], [4]]


@BOTH
def test_a_sample_of_a_subset_that_fails_is_named(num_workers: int) -> None:
    """``random_split`` makes subsets, which have ``__getitems__`` but read sample by sample."""

    def make(i: int) -> int:
        if i == 14:
            raise ValueError("bad 14")
        return i

    dataset: Any = tud.Subset(tud.Subset(Made(20, make), range(10, 20)), [1, 2, 3, 4, 5])
    with pytest.raises(ValueError, match="bad 14") as caught:
        list(ours(dataset, num_workers, batch_size=5))
    assert "dataset[3] raised ValueError" in str(caught.value)


@BOTH
def test_a_subset_passes_getitems_on(num_workers: int) -> None:
    """Its dataset is asked in bulk, and the form that it gives is kept."""
    dataset: Any = tud.Subset(Bulk(9, FORMS["a dict of columns"]), [8, 3, 5])
    (batch,) = ours(dataset, num_workers, batch_size=3, collate_fn=as_is)

    assert {name: column.tolist() for name, column in batch.items()} == {"x": [8, 3, 5], "y": [16, 6, 10]}
