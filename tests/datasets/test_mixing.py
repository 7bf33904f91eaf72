"""Several datasets as one, and parts of one: what is in them, how they come, and what is refused."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import antifreeze as af
from conftest import Data


@pytest.fixture
def parts(shared_data: Data) -> list[af.StreamingDataset]:
    """Three datasets of 50, 100 and 159 rows."""
    whole = af.StreamingDataset(shared_data.path, columns=["n", "label"], format="numpy")
    return [whole.subset(range(50)), whole.subset(range(50, 150)), whole.subset(range(150, 309))]


def numbers(loader: Any) -> list[int]:
    return list(itertools.chain(*(batch["n"].tolist() for batch in loader)))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_mixture_has_every_row_once(parts: list[af.StreamingDataset], num_workers: int, shuffle: bool) -> None:
    """And not one dataset after the other."""
    dataset = af.CombinedStreamingDataset(parts)
    found = numbers(af.StreamingDataLoader(dataset, batch_size=10, shuffle=shuffle, num_workers=num_workers))

    assert sorted(found) == list(range(309))
    assert found != sorted(found)
    share = Counter(0 if n < 50 else 1 if n < 150 else 2 for n in found[:128])
    assert all(abs(share[i] / 128 - size / 309) < 0.05 for i, size in enumerate((50, 100, 159)))


def test_a_mixture_differs_from_epoch_to_epoch(parts: list[af.StreamingDataset]) -> None:
    """Also if the rows of each dataset are in order: who comes next is chance."""
    loader = af.StreamingDataLoader(af.CombinedStreamingDataset(parts), batch_size=10)

    assert numbers(loader) != numbers(loader)


def test_temperature_makes_small_datasets_larger(parts: list[af.StreamingDataset]) -> None:
    """Without it, shares are those of the lengths."""
    flat = af.CombinedStreamingDataset(parts, temperature=1e9, iterate_over_all=False)
    share = Counter(0 if n < 50 else 1 if n < 150 else 2 for n in numbers(af.StreamingDataLoader(flat, batch_size=8)))

    assert max(share.values()) - min(share.values()) <= 1


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_batches_per_stream_are_of_one_dataset(parts: list[af.StreamingDataset], num_workers: int, ranks: int) -> None:
    """The same on every rank; what is too little for a batch comes at the end, and nothing is lost."""
    parts = [part.subset(range(len(part))) for part in parts]
    dataset = af.CombinedStreamingDataset(parts, batching_method="per_stream", shuffle=True)
    loaders = [
        af.StreamingDataLoader(dataset, batch_size=10 // ranks, num_workers=num_workers, rank=rank, world_size=ranks)
        for rank in range(ranks)
    ]
    steps = [[n for batch in step for n in batch["n"].tolist()] for step in zip(*loaders, strict=True)]
    streams = [{0 if n < 50 else 1 if n < 150 else 2 for n in step} for step in steps]

    assert set(range(309)) == {n for step in steps for n in step}
    assert all(len(stream) == 1 for stream in streams)  # 159 rows: nine are left, of one dataset
    counts = Counter(next(iter(stream)) for stream in streams[:-1])
    assert counts == {0: 5, 1: 10, 2: 15}
    assert [next(iter(stream)) for stream in streams] != sorted(next(iter(stream)) for stream in streams)


def test_batches_per_stream_keep_their_shares(parts: list[af.StreamingDataset]) -> None:
    """Every stretch of batches has them, and each epoch another order."""
    dataset = af.CombinedStreamingDataset(
        parts, batching_method="per_stream", weights=[1, 1, 2], iterate_over_all=False
    )
    loader = af.StreamingDataLoader(dataset, batch_size=5)
    epochs = [[0 if b["n"][0] < 50 else 1 if b["n"][0] < 150 else 2 for b in loader] for _ in range(2)]

    assert Counter(epochs[0]) == Counter(epochs[1])
    assert epochs[0] != epochs[1]
    assert abs(Counter(epochs[0])[2] - len(epochs[0]) / 2) <= 1


def test_batches_per_stream_that_cannot_be_are_refused(parts: list[af.StreamingDataset]) -> None:
    """With the reason."""
    dataset = af.CombinedStreamingDataset(parts, batching_method="per_stream")
    with pytest.raises(af.ConfigError, match="4 lanes do not divide them"):
        next(iter(af.StreamingDataLoader(dataset, batch_size=10, lanes=4)))
    with pytest.raises(af.ConfigError, match="not a part of another"):
        af.ParallelStreamingDataset([dataset, parts[0]])
    with pytest.raises(af.ConfigError, match="batching_method='all' is not known"):
        af.CombinedStreamingDataset(parts, batching_method="all")


def test_the_same_dataset_twice_is_read_in_two_orders(parts: list[af.StreamingDataset]) -> None:
    """A dataset may be given twice to have it twice as often; not to have each row twice in a row."""
    pair = af.ParallelStreamingDataset([parts[0], parts[0]])
    rows = [(int(a["n"]), int(b["n"])) for a, b in af.ParallelStreamingDataset(pair.datasets, shuffle=True)]

    assert sorted(a for a, _ in rows) == sorted(b for _, b in rows) == list(range(50))
    assert sum(a == b for a, b in rows) < 10


@pytest.mark.parametrize("num_workers", [0, 1])
def test_side_by_side_is_what_zip_does(parts: list[af.StreamingDataset], num_workers: int) -> None:
    """In order, the first with the first."""
    pairs = af.ParallelStreamingDataset(parts[:2])
    batches = list(af.StreamingDataLoader(pairs, batch_size=20, num_workers=num_workers))

    assert [len(a["n"]) for a, _ in batches] == [20, 20, 10]
    assert list(itertools.chain(*(a["n"].tolist() for a, _ in batches))) == list(range(50))
    assert list(itertools.chain(*(b["n"].tolist() for _, b in batches))) == list(range(50, 100))


def test_a_dataset_that_ends_begins_again_in_another_order(parts: list[af.StreamingDataset]) -> None:
    """As often as is needed."""
    pairs = af.ParallelStreamingDataset([parts[0], parts[2]], length=170, shuffle=True)
    found = [(int(a["n"]), int(b["n"])) for a, b in pairs]
    left = [a for a, _ in found]

    assert sorted(left[:50]) == sorted(left[50:100]) == sorted(left[100:150]) == list(range(50))
    assert left[:50] != left[50:100]
    assert sorted(b for _, b in found[:159]) == list(range(150, 309))


def pairs_of(batches: Any) -> list[tuple[int, int]]:
    return [pair for a, b in batches for pair in zip(a["n"].tolist(), b["n"].tolist(), strict=True)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("length", [0, 1, 5, 50, 55, 170])
def test_an_epoch_has_as_many_rows_as_its_length(
    parts: list[af.StreamingDataset], num_workers: int, length: int
) -> None:
    """Neither the datasets' ends nor the batch size may add any."""
    dataset = af.ParallelStreamingDataset(parts[:2], length=length)
    loader = af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers)

    sizes = [len(a["n"]) for a, _ in loader]
    assert sum(sizes) == len(list(dataset)) == len(dataset) == length
    assert len(sizes) == len(loader)
    assert all(size == 8 for size in sizes[:-1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_starts_where_the_one_before_it_stopped(parts: list[af.StreamingDataset], num_workers: int) -> None:
    """As one stream of rows that is cut into epochs; also after an epoch that was left early."""
    dataset = af.ParallelStreamingDataset(parts[:2], length=70)
    loader = af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers)
    stream = [(i % 50, 50 + i % 100) for i in range(280)]

    assert pairs_of(loader) == stream[:70]
    assert pairs_of(loader) == stream[70:140]
    assert pairs_of(itertools.islice(loader, 2)) == stream[140:156]
    assert pairs_of(loader) == stream[156:210]
    assert pairs_of(loader) == stream[210:280]


def test_shuffled_cycles_are_epochs_of_their_dataset(parts: list[af.StreamingDataset]) -> None:
    """Every row once before one comes again, wherever epochs of the whole end; and each time in another order."""
    dataset = af.ParallelStreamingDataset(parts[:1], length=30, shuffle=True)
    loader = af.StreamingDataLoader(dataset, batch_size=7)
    found = [n for _ in range(10) for (a,) in loader for n in a["n"].tolist()]
    cycles = [found[i : i + 50] for i in range(0, 300, 50)]

    assert all(sorted(cycle) == list(range(50)) for cycle in cycles)
    assert len({tuple(cycle) for cycle in cycles}) == 6


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_resume_every_epoch_is_the_same(parts: list[af.StreamingDataset], shuffle: bool) -> None:
    """The same rows, in the same order."""
    dataset = af.ParallelStreamingDataset(parts[:2], length=70, resume=False, shuffle=shuffle)
    loader = af.StreamingDataLoader(dataset, batch_size=8)
    first = pairs_of(loader)

    assert len(first) == 70
    assert pairs_of(itertools.islice(loader, 2)) == first[:16]
    assert pairs_of(loader) == first


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_length_without_end(parts: list[af.StreamingDataset], num_workers: int) -> None:
    """It has no len(), goes on for as long as it is asked, and is continued by the next iteration and by a state."""
    dataset = af.ParallelStreamingDataset(parts[:2], length=float("inf"))
    loader = af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers)
    stream = [(i % 50, 50 + i % 100) for i in range(960)]

    assert pairs_of(itertools.islice(loader, 40)) == stream[:320]
    assert pairs_of(itertools.islice(loader, 40)) == stream[320:640]
    other = af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers)
    other.load_state_dict(loader.state_dict())
    assert pairs_of(itertools.islice(other, 40)) == stream[640:]
    assert pairs_of(itertools.islice(af.StreamingDataLoader(dataset, batch_size=8), 3)) == stream[:24]
    with pytest.raises(TypeError, match="has no len"):
        len(dataset)
    with pytest.raises(TypeError, match="has no end"):
        len(loader)
    with pytest.raises(af.ConfigError, match="cannot be a part of another"):
        af.CombinedStreamingDataset([dataset, dataset])


def test_a_state_does_not_fit_another_resume_or_length(parts: list[af.StreamingDataset]) -> None:
    """They change which rows a position stands for."""

    def loader(**options: Any) -> af.StreamingDataLoader:
        return af.StreamingDataLoader(af.ParallelStreamingDataset(parts[:2], **options), batch_size=8)

    saved = loader(length=70)
    next(iter(saved))
    for options in ({"length": 70, "resume": False}, {"length": 71}, {}):
        with pytest.raises(af.StateMismatch):
            loader(**options).load_state_dict(saved.state_dict())


def test_a_mixture_of_mixtures(parts: list[af.StreamingDataset]) -> None:
    """Each of them can be a part of another."""
    inner = af.CombinedStreamingDataset(parts[:2])
    outer = af.CombinedStreamingDataset([inner, parts[2]])
    found = numbers(af.StreamingDataLoader(outer, batch_size=7, num_workers=1, shuffle=True))

    assert sorted(found) == list(range(309))


def _doubled(row: Any) -> Any:
    return {"n": row["n"] * 2}


def _added(row: Any) -> Any:
    return {"n": row[0]["n"] + row[1]["n"]}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_transforms(parts: list[af.StreamingDataset], num_workers: int) -> None:
    """Of a row of the mixture, or of a tuple of rows."""
    made = {"batch_size": 8, "num_workers": num_workers}
    mixed = af.CombinedStreamingDataset(parts, transform=_doubled)
    paired = af.ParallelStreamingDataset(parts[:2], transform=_added)

    assert sorted(numbers(af.StreamingDataLoader(mixed, **made))) == list(range(0, 618, 2))
    assert numbers(af.StreamingDataLoader(paired, **made)) == list(range(50, 150, 2))


def _drawn(rows: Any, rngs: Any) -> Any:
    assert sorted(rngs) == ["numpy", "random", "torch"]
    draws = (rngs["random"].random(), rngs["numpy"].random(), torch.rand(1, generator=rngs["torch"]).item())
    return {"n": rows[0]["n"], "draws": np.array(draws)}


def draws_of(loader: Any) -> list[tuple[int, tuple[float, ...]]]:
    return [(int(n), tuple(d)) for batch in loader for n, d in zip(batch["n"], batch["draws"].tolist(), strict=True)]


def test_a_transform_with_two_arguments_gets_generators(parts: list[af.StreamingDataset]) -> None:
    """They belong to the batch: the same with any number of workers, after a resume, and not in the next epoch."""

    def loader(**options: Any) -> af.StreamingDataLoader:
        dataset = af.ParallelStreamingDataset(parts[:2], transform=_drawn)
        return af.StreamingDataLoader(dataset, batch_size=8, **options)

    first = loader(num_workers=2)
    whole, later = draws_of(first), draws_of(first)
    assert len({draw for _, draws in whole for draw in draws}) == 150
    assert [n for n, _ in whole] == [n for n, _ in later]
    assert {draws for _, draws in whole}.isdisjoint(draws for _, draws in later)

    stopped = loader()
    assert draws_of(itertools.islice(stopped, 2)) == whole[:16]
    resumed = loader(num_workers=1)
    resumed.load_state_dict(stopped.state_dict())
    assert draws_of(resumed) == whole[16:]


def test_generators_can_be_the_same_in_every_epoch(parts: list[af.StreamingDataset]) -> None:
    """With the same rows, that makes every epoch the same."""
    dataset = af.ParallelStreamingDataset(parts[:2], length=70, transform=_drawn, resume=False, reset_rngs=True)
    loader = af.StreamingDataLoader(dataset, batch_size=8, shuffle=True)

    assert draws_of(loader) == draws_of(loader)


def _pair(rows: Any, rngs: Any) -> Any:
    return {"n": rows[0]["n"], "draws": np.full((len(rows[0]["n"]), 1), rngs["numpy"].random())}


def test_a_transform_of_whole_batches_gets_generators_too(parts: list[af.StreamingDataset]) -> None:
    """Once for each batch; one with three arguments is refused."""
    dataset = af.ParallelStreamingDataset(parts[:2], transform=af.batched(_pair))
    assert len({draws for _, draws in draws_of(af.StreamingDataLoader(dataset, batch_size=10))}) == 5
    with pytest.raises(af.ConfigError, match="transform takes 3 arguments"):
        af.ParallelStreamingDataset(parts, transform=lambda a, b, c: (a, b, c))


def _fails(row: Any) -> Any:
    if int(row["n"]) == 77:
        raise ValueError("not this one")
    return row


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_row_that_fails_is_named_with_its_file(
    parts: list[af.StreamingDataset], num_workers: int, shared_data: Data
) -> None:
    """Of whatever dataset it is."""
    dataset = af.CombinedStreamingDataset(parts, transform=_fails)
    with pytest.raises(af.UserCodeError, match=rf"{shared_data.files[0].name}, row 77 of the file"):
        list(af.StreamingDataLoader(dataset, batch_size=8, num_workers=num_workers))


# -- parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
def test_parts_of_a_split_share_no_row(shared_data: Data, shuffle: bool) -> None:
    """Together they are all of them."""
    whole = af.StreamingDataset(shared_data.path, columns=["n"], format="numpy")
    found = [[int(row["n"]) for row in part] for part in af.train_test_split(whole, [0.5, 0.2, 0.3], shuffle=shuffle)]

    assert [len(rows) for rows in found] == [154, 62, 93]
    assert sorted(itertools.chain(*found)) == list(range(309))
    assert all(rows == sorted(rows) for rows in found)
    assert (found[0] == list(range(154))) is not shuffle


def test_a_split_depends_on_its_seed_alone(shared_data: Data) -> None:
    """The test data of today are those of tomorrow."""
    whole = af.StreamingDataset(shared_data.path, columns=["n"], format="numpy")
    one, two, three = (af.train_test_split(whole, [0.1], seed=seed)[0] for seed in (1, 1, 2))

    assert [r["n"] for r in one] == [r["n"] for r in two] != [r["n"] for r in three]
    assert len(one) == 30


@pytest.mark.parametrize(("amount", "expected"), [(0.1, 30), (1, 309), (2.5, 772), (0, 0)])
def test_a_subsample_has_so_many_rows(shared_data: Data, amount: float, expected: int) -> None:
    """Above one, each row comes at least so often."""
    whole = af.StreamingDataset(shared_data.path, columns=["n"], format="numpy")
    part = af.subsample(whole, amount)
    counts = np.bincount([int(row["n"]) for row in part], minlength=309)

    assert counts.sum() == len(part) == expected
    assert counts.max() - counts.min() <= 1
    given = af.StreamingDataset(shared_data.path, columns=["n"], format="numpy", subsample=amount)
    assert [row["n"] for row in given] == [row["n"] for row in part]


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1, 2]}, r"weights=\[1, 2\] are not 3 numbers"),
        ({"weights": [0, 0, 0]}, "are not 3 numbers of at least 0, one above it"),
        ({"weights": [1, -1, 1]}, "are not 3 numbers"),
        ({"weights": "abc"}, "are not 3 numbers"),
        ({"temperature": 0}, "temperature=0 is not above 0"),
        ({"iterate_over_all": "no"}, "iterate_over_all='no' is neither True nor False"),
        ({"transform": 3}, "transform=3 is a int"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(
    parts: list[af.StreamingDataset], options: dict[str, Any], message: str
) -> None:
    """When it is made, not in the middle of an epoch."""
    with pytest.raises(af.ConfigError, match=message):
        af.CombinedStreamingDataset(parts, **options)


def test_a_function_that_returns_bad_weights_is_named(parts: list[af.StreamingDataset]) -> None:
    """Whatever it is that comes back."""
    dataset = af.CombinedStreamingDataset(parts, weights=lambda step: [step])
    with pytest.raises(af.ConfigError, match=r"weights=\[0\] are not 3 numbers"):
        next(iter(af.StreamingDataLoader(dataset, batch_size=4)))


def test_datasets_that_do_not_fit_together_are_refused(parts: list[af.StreamingDataset], shared_data: Data) -> None:
    """What differs is named."""
    other = af.StreamingDataset(shared_data.path, columns=["n", "score"], format="numpy")
    with pytest.raises(af.SchemaMismatch, match=r"datasets 0 and 1 .* label \(int64\), score \(float\)"):
        af.CombinedStreamingDataset([parts[0], other])
    torchs = af.StreamingDataset(shared_data.path, columns=["n", "label"])
    with pytest.raises(af.ConfigError, match="different formats: numpy, torch"):
        af.CombinedStreamingDataset([parts[0], torchs])
    with pytest.raises(af.ConfigError, match="dataset 1 is a list"):
        af.CombinedStreamingDataset([parts[0], [1, 2]])  # type: ignore[list-item]
    with pytest.raises(af.ConfigError, match="is not a list of datasets"):
        af.ParallelStreamingDataset([])
    with pytest.raises(af.ConfigError, match="length='all' is not known"):
        af.ParallelStreamingDataset(parts, length="all")
    with pytest.raises(af.ConfigError, match="without rows cannot start over"):
        af.ParallelStreamingDataset([parts[0], parts[1].subset([])], length="longest")
    whole = af.StreamingDataset(shared_data.path, columns=["n", "label"], transform=af.batched(_doubled))
    with pytest.raises(af.ConfigError, match=r"dataset 0 of a Combined.* has a transform of whole batches"):
        af.CombinedStreamingDataset([whole, torchs])
    with pytest.raises(af.ConfigError, match=r"dataset 0 of a Parallel.* has a transform of whole batches"):
        af.ParallelStreamingDataset([whole, torchs])
    with pytest.raises(af.ConfigError, match="both have a transform"):
        af.CombinedStreamingDataset([whole, whole], transform=_doubled)


@pytest.mark.parametrize("splits", [[0.6, 0.6], [], ["a"], [-0.1, 0.5], 3])
def test_splits_that_are_none_are_refused(parts: list[af.StreamingDataset], splits: Any) -> None:
    """They must be fractions of the whole."""
    with pytest.raises(af.ConfigError, match="are not fractions that add up to 1 at most"):
        af.train_test_split(parts[0], splits)


def test_an_amount_that_is_none_is_refused(parts: list[af.StreamingDataset]) -> None:
    """For the function, and for the argument."""
    with pytest.raises(af.ConfigError, match="amount=-1 is not a fraction"):
        af.subsample(parts[0], -1)
