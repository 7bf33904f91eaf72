"""Classes that users derive from datasets: what they override is what a loader delivers, or an error that says so."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import antifreeze as af
from conftest import Data

BOTH = pytest.mark.parametrize("num_workers", [0, 2])


class WithTransform(af.StreamingDataset):
    """As in litData's README: attributes are set after the base class is made."""

    def __init__(self, *args: Any, factor: int = 1000, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.factor = factor

    def transform(self, row: Any, *_: Any, **__: Any) -> Any:
        return {"n": row["n"] + self.factor, "pid": os.getpid()}


class WithGetItem(af.StreamingDataset):
    """As in litData's README."""

    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)
        return {"n": row["n"] + 1000, "index": index, "pid": os.getpid()}


def numbers(loader: Any, key: str = "n") -> list[int]:
    return [int(n) for batch in loader for n in batch[key]]


def options(data: Data) -> dict[str, Any]:
    return {"input_dir": data.path, "columns": ["n"], "format": "numpy"}


@BOTH
@pytest.mark.parametrize("kind", [WithTransform, WithGetItem])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_a_subclass_overrides_is_delivered(shared_data: Data, kind: Any, num_workers: int, shuffle: bool) -> None:
    """In worker processes, if there are any; also by plain iteration, and row by row."""
    dataset = kind(**options(shared_data), shuffle=shuffle)
    batches = list(af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers))

    assert sorted(numbers(batches)) == list(range(1000, 1309))
    assert (numbers(batches) == list(range(1000, 1309))) is not shuffle
    assert (os.getpid() in numbers(batches, "pid")) is (num_workers == 0)
    assert sorted(int(row["n"]) for row in dataset) == list(range(1000, 1309))
    assert int(dataset[5]["n"]) == 1005


@BOTH
@pytest.mark.parametrize("format_", ["torch", "numpy", "arrow"])
def test_every_format_can_be_overridden(shared_data: Data, format_: str, num_workers: int) -> None:
    """Also where rows are not arrays."""

    class Doubled(af.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            row = super().__getitem__(index)
            n = row["n"].as_py() if format_ == "arrow" else int(row["n"])
            assert set(row) == {"n", "tag"}
            return n * 2

    dataset = Doubled(shared_data.path, columns=["n", "tag"], format=format_, shuffle=True)
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers, collate_fn=list)

    assert sorted(n for batch in loader for n in batch) == list(range(0, 618, 2))


@BOTH
def test_the_index_is_the_number_of_the_row(shared_data: Data, num_workers: int) -> None:
    """What ``dataset[i]`` gives for it is what the loader delivers: in a part of a part, too."""
    whole = WithGetItem(**options(shared_data), shuffle=True)
    mask = np.arange(309) % 3 == 0
    parts = [
        whole,
        whole.subset(range(100, 200)),
        whole.subset([7, 300, 7, 4]),
        whole.subset(mask).subset(slice(5, 50)),
    ]
    for part in parts:
        for batch in af.StreamingDataLoader(part, batch_size=16, num_workers=num_workers):
            for n, index in zip(batch["n"], batch["index"], strict=True):
                assert part[int(index)]["n"] == n


def test_the_row_that_is_asked_for_is_not_read_again(shared_data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row by row, a shuffled epoch would decode every row group again and again."""
    dataset = WithGetItem(**options(shared_data), shuffle=True)
    monkeypatch.setattr(dataset, "_get", None)

    assert sorted(numbers(af.StreamingDataLoader(dataset, batch_size=16))) == list(range(1000, 1309))


@BOTH
def test_other_rows_can_be_asked_for(shared_data: Data, num_workers: int) -> None:
    """A worker reads them for itself."""

    class Mixup(af.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            mine, other = super().__getitem__(index), super().__getitem__(308 - index)
            return {"n": mine["n"], "sum": mine["n"] + other["n"] + super().__getitem__(index)["n"]}

    dataset = Mixup(**options(shared_data))
    batches = list(af.StreamingDataLoader(dataset, batch_size=100, num_workers=num_workers))

    assert numbers(batches, "sum") == [308 + n for n in numbers(batches)] == [308 + n for n in range(309)]


@BOTH
def test_a_transform_comes_before_what_getitem_does(shared_data: Data, num_workers: int) -> None:
    """``super().__getitem__`` applies it, as in litData; one that is given takes the place of a method."""
    given = {"transform": [lambda row: {"n": row["n"] * 2}, lambda row: {"n": row["n"] + 1}]}
    for kind, first in ((WithGetItem, 1001), (WithTransform, 1), (af.StreamingDataset, 1)):
        dataset = kind(**options(shared_data), **given)
        loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers)
        assert numbers(loader) == list(range(first, first + 618, 2))
        assert int(dataset[0]["n"]) == first


@BOTH
def test_a_method_of_whole_batches(shared_data: Data, num_workers: int) -> None:
    """The mark works in a class."""

    class Whole(af.StreamingDataset):
        factor = 3

        @af.batched
        def transform(self, batch: Any) -> Any:
            assert len(batch["n"]) in (16, 5, 1)
            return {"n": batch["n"] * self.factor}

    dataset = Whole(**options(shared_data))
    assert numbers(af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers)) == list(range(0, 927, 3))
    assert int(dataset[2]["n"]) == 6

    class Neither(Whole, WithGetItem):
        pass

    with pytest.raises(af.ConfigError, match="Neither overrides __getitem__"):
        af.StreamingDataLoader(Neither(**options(shared_data)))


def test_parts_keep_class_and_attributes(shared_data: Data) -> None:
    """Also those that a subclass leaves out when it is pickled."""

    class Slotted(WithTransform):
        __slots__ = ("extra",)

        def __getstate__(self) -> Any:
            raise AssertionError("a part is not pickled")

    whole = Slotted(**options(shared_data), factor=7)
    whole.extra = [1]
    parts = [whole.subset([1, 2]), af.subsample(whole, 0.5), *af.train_test_split(whole, [0.5, 0.5])]
    for part in parts:
        assert type(part) is Slotted
        assert (part.factor, part.extra) == (7, [1])
        assert min(numbers(af.StreamingDataLoader(part, batch_size=16))) >= 7
        assert "Slotted" in repr(part)


def test_a_subclass_can_be_pickled(shared_data: Data) -> None:
    """And is the same afterwards."""
    dataset = pickle.loads(pickle.dumps(WithTransform(**options(shared_data), factor=7)))  # noqa: S301

    assert numbers(af.StreamingDataLoader(dataset, batch_size=16)) == list(range(7, 316))


@BOTH
@pytest.mark.parametrize("kind", [WithTransform, WithGetItem])
def test_reading_does_not_change_what_is_pickled(shared_data: Data, kind: Any, num_workers: int) -> None:
    """Else workers of every epoch would have to load the dataset again."""
    dataset = kind(**options(shared_data))
    before = pickle.dumps(dataset)
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers)
    for _ in range(2):
        assert len(numbers(loader)) == 309
    assert int(dataset[3]["n"]) == 1003

    assert pickle.dumps(dataset) == before


class OwnState(WithTransform):
    """Leaves out what cannot be pickled, in one of the ways that people write."""

    way = 0
    handle: Any

    def __getstate__(self) -> Any:
        state: Any = self.__dict__.copy() if self.way == 0 else super().__getstate__()
        state["handle"] = None
        return state


@BOTH
@pytest.mark.parametrize("way", [0, 1])
def test_a_subclass_may_have_its_own_way_of_pickling(shared_data: Data, num_workers: int, way: int) -> None:
    """After rows were read, too: what was made for that is not pickled."""
    dataset = OwnState(**options(shared_data), factor=7)
    dataset.way, dataset.handle = way, shared_data.files[0].open("rb")
    with dataset.handle:
        assert int(dataset[3]["n"]) == 10
        loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers)
        assert numbers(loader) == numbers(loader) == list(range(7, 316))
        assert dataset.subset([1]).handle is dataset.handle


@BOTH
def test_datasets_of_a_mixture_make_their_own_rows(shared_data: Data, num_workers: int) -> None:
    """Each with what it overrides or was given; the mixture's own transform comes after."""
    arguments = options(shared_data)
    plain = af.StreamingDataset(**arguments, subset=range(100))
    kinds = [
        WithTransform(**arguments, subset=range(100, 150), factor=1000),
        WithTransform(**arguments, subset=range(150, 200), factor=2000),
        WithGetItem(**arguments, subset=range(200, 250)),
        af.StreamingDataset(**arguments, subset=range(250, 309), transform=lambda row: {"n": row["n"] + 5000}),
    ]
    inner = af.CombinedStreamingDataset(kinds[:2], transform=lambda row: {"n": row["n"] + 10_000})
    dataset = af.CombinedStreamingDataset(
        [plain, inner, *kinds[2:]], shuffle=True, transform=lambda row: {"n": row["n"] + 100_000}
    )
    expected = [range(100), range(11_100, 11_150), range(12_150, 12_200), range(1200, 1250), range(5250, 5309)]

    found = numbers(af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers))
    assert sorted(found) == sorted(100_000 + n for part in expected for n in part)
    assert sorted(int(row["n"]) for row in dataset) == sorted(found)


@BOTH
def test_datasets_side_by_side_make_their_own_rows(shared_data: Data, num_workers: int) -> None:
    """One dataset may make rows that are no dicts."""
    left, right = WithGetItem(**options(shared_data)), af.StreamingDataset(**options(shared_data))
    dataset = af.ParallelStreamingDataset([left, right.subset(range(9, 309))])

    batches = list(af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers))
    assert [int(n) for a, _ in batches for n in a["n"]] == list(range(1000, 1300))
    assert [int(n) for _, b in batches for n in b["n"]] == list(range(9, 309))
    mixed = af.CombinedStreamingDataset([dataset, af.ParallelStreamingDataset([right, right])])
    found = [int(a["n"]) for a, _ in mixed]
    assert sorted(found) == sorted([*range(1000, 1300), *range(309)])


@BOTH
def test_mixtures_can_be_derived_from(shared_data: Data, num_workers: int) -> None:
    """By a method, too."""

    class Mixture(af.CombinedStreamingDataset):
        def transform(self, row: Any) -> Any:
            return {"n": -row["n"]}

    class Pairs(af.ParallelStreamingDataset):
        def transform(self, rows: Any) -> Any:
            return {"n": rows[0]["n"] - rows[1]["n"]}

    parts = [af.StreamingDataset(**options(shared_data))] * 2
    loaders = [af.StreamingDataLoader(k(parts), batch_size=16, num_workers=num_workers) for k in (Mixture, Pairs)]
    assert sorted(numbers(loaders[0])) == sorted([*range(-308, 1)] * 2)
    assert numbers(loaders[1]) == [0] * 309


class Fails(WithGetItem):
    """Cannot make one row."""

    def __getitem__(self, index: Any) -> Any:
        if index == 77:
            raise ValueError("not this one")
        return super().__getitem__(index)


@BOTH
def test_a_row_that_fails_is_named_and_can_be_skipped(shared_data: Data, num_workers: int) -> None:
    """As with a transform."""
    dataset = Fails(**options(shared_data), shuffle=True)
    with pytest.raises(ValueError, match=r"dataset\[77\] raised ValueError: not this one") as caught:
        list(af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers))
    assert isinstance(caught.value, af.UserCodeError)
    assert f"{shared_data.files[0].name}, row 77 of the file" in str(caught.value)
    skipping = af.StreamingDataLoader(dataset, batch_size=16, num_workers=num_workers, on_error="skip")
    assert sorted(numbers(skipping)) == [n for n in range(1000, 1309) if n != 1077]


class DiesOnce(WithGetItem):
    """Kills the first worker that makes a certain row."""

    marker: Any

    def __getitem__(self, index: Any) -> Any:
        if index == 200 and not self.marker.exists():
            self.marker.touch()
            os._exit(3)
        return super().__getitem__(index)


def test_a_worker_that_dies_in_getitem_is_replaced(shared_data: Data, tmp_path: Any) -> None:
    """Its rows are made again."""
    dataset = DiesOnce(**options(shared_data))
    dataset.marker = tmp_path / "died"
    loader = af.StreamingDataLoader(dataset, batch_size=16, num_workers=2)

    assert numbers(loader) == list(range(1000, 1309))
    assert dataset.marker.exists()


@BOTH
def test_a_run_over_a_subclass_resumes_exactly(shared_data: Data, num_workers: int) -> None:
    """Random numbers included."""

    class Noisy(WithGetItem):
        def __getitem__(self, index: Any) -> Any:
            return {**super().__getitem__(index), "noise": np.random.rand() + torch.rand(1).item()}

    def loader(**more: Any) -> af.StreamingDataLoader:
        return af.StreamingDataLoader(Noisy(**options(shared_data), shuffle=True), batch_size=16, **more)

    whole = [(b["n"].tolist(), b["noise"].tolist()) for b in loader(num_workers=num_workers)]
    first = loader(num_workers=1)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    second = loader(num_workers=num_workers)
    second.load_state_dict(first.state_dict())
    assert [(b["n"].tolist(), b["noise"].tolist()) for b in second] == whole[5:]
    ranks = [loader(rank=rank, world_size=2) for rank in (0, 1)]
    assert set(numbers(ranks[0])) | set(numbers(ranks[1])) == set(range(1000, 1309))


@BOTH
def test_user_code_knows_the_epoch(shared_data: Data, num_workers: int) -> None:
    """By litData's name for it, counted from 1."""

    class Curriculum(af.StreamingDataset):
        def transform(self, row: Any) -> Any:
            return {"epoch": self.current_epoch, "n": row["n"]}

    class Asked(af.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return {"epoch": self.current_epoch, "n": super().__getitem__(index)["n"]}

    for kind in (Curriculum, Asked):
        dataset = kind(**options(shared_data))
        loader = af.StreamingDataLoader(dataset, batch_size=103, num_workers=num_workers)
        assert (loader.current_epoch, dataset.current_epoch) == (0, 1)
        for epoch in (1, 2, 3):
            assert set(numbers(loader, "epoch")) == {epoch}
            assert (loader.current_epoch, dataset.current_epoch) == (epoch, epoch)
        loader.current_epoch = 7
        assert set(numbers(loader, "epoch")) == {8}


class OverridesIter(af.StreamingDataset):
    """Gives every second row."""

    def __iter__(self) -> Iterator[Any]:
        return (row for row in super().__iter__() if row["n"] % 2)


class OverridesNext(af.StreamingDataset):
    """Gives none."""

    def __next__(self) -> Any:
        raise StopIteration


class OverridesLen(af.StreamingDataset):
    """Claims to have ten rows."""

    def __len__(self) -> int:
        return 10


class SameLen(af.StreamingDataset):
    """Changes nothing."""

    def __len__(self) -> int:
        return super().__len__()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (OverridesIter, "OverridesIter overrides __iter__, which is not called"),
        (OverridesNext, "OverridesNext overrides __next__, which is not called"),
        (OverridesLen, "OverridesLen overrides __len__ to give 10, but the dataset has 309 rows"),
    ],
)
def test_what_would_be_ignored_is_refused(shared_data: Data, kind: Any, message: str) -> None:
    """By loaders, and by datasets that are made of others; the dataset itself may be iterated over."""
    dataset = kind(**options(shared_data))
    with pytest.raises(af.ConfigError, match=message):
        af.StreamingDataLoader(dataset)
    with pytest.raises(af.ConfigError, match=message):
        af.CombinedStreamingDataset([dataset, dataset])
    assert len(numbers(af.StreamingDataLoader(SameLen(**options(shared_data)), batch_size=16))) == 309
    if kind is OverridesIter:
        assert [int(row["n"]) for row in dataset] == list(range(1, 309, 2))


def test_derived_mixtures_that_would_be_ignored_are_refused(shared_data: Data) -> None:
    """They are no different."""

    class Mixture(af.CombinedStreamingDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    with pytest.raises(af.ConfigError, match="Mixture overrides __iter__"):
        af.StreamingDataLoader(Mixture([af.StreamingDataset(**options(shared_data))]))
