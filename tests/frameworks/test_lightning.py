"""Lightning and Fabric take our loaders for what they are, and leave them what they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from framework_runs import Runs, opened

from conftest import more

KINDS = ("map", "iterable", "streaming")  # and "plain": Parquet without a function of the user's, by threads alone
RESUMABLE = ("map", "plain")
OURS = {"map": "antifreeze.loaders.dataloader", "iterable": "antifreeze.loaders.dataloader"}
OURS["streaming"] = OURS["plain"] = "antifreeze.loaders._streaming"


@pytest.fixture(scope="session")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield from opened("runs_lightning", tmp_path_factory.mktemp("lightning"))


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_stages_get_every_sample_once_from_our_workers(lightning: Runs, kind: str) -> None:
    """Fit with its sanity check, validate, test and predict; some of them build the loader again."""
    (seen,) = lightning("stages", kind=kind)

    assert kind == "iterable" or seen["batches"] == 6  # what the progress bar shows
    assert seen["classes"] == [[OURS[kind], True]] * 5
    assert [sorted(epoch) for epoch in seen["epochs"]] == [list(range(24))] * 2
    assert kind == "iterable" or seen["epochs"][0] != seen["epochs"][1]
    assert sorted(flat(seen["test"][0])) == sorted(flat(seen["val 0"][0][8:])) == list(range(24))
    assert sorted(flat(seen["val 0"][0][:8])) == sorted([*range(16), *range(16)])
    assert seen["sanity"][0] == seen["val 0"][0][:2]
    assert sorted(seen["predictions"]) == list(range(22))
    assert {seen[stage][1] for stage in ("train", "sanity", "val 0", "test", "predict")} == {"ours"}


def test_loaders_that_are_made_in_hooks_stay_ours(lightning: Runs) -> None:
    """Lightning wraps ``__init__`` and ``__setattr__`` while a hook runs, and predicts with a copy."""
    (seen,) = lightning("hooks")

    assert seen["classes"] == [[OURS["map"], True]] * 2 + [[OURS["streaming"], True]]
    assert seen["predicting"] == [[OURS["map"], True]]
    assert sorted(flat(seen["train"][0])) == list(range(24))
    assert (flat(seen["val 0"][0]), flat(seen["val 1"][0])) == (list(range(8)), list(range(12)))
    assert sorted(flat(seen["predict"][0])) == list(range(24))


@pytest.mark.parametrize(
    ("mode", "a", "b"), [("max_size_cycle", 1.5, 1), *more(("min_size", 1, 2 / 3), ("max_size", 1, 1))]
)
def test_loaders_can_be_combined(lightning: Runs, mode: str, a: float, b: float) -> None:
    """A map-style loader of 8 samples and a streaming one of 12; validation takes one after the other."""
    (seen,) = lightning("combined", mode=mode)

    assert flat(seen["a"][0]) == [*range(8), *range(8)][: int(8 * a)]
    assert flat(seen["b"][0]) == list(range(int(12 * b)))
    assert seen["batches"] == (2 if mode == "min_size" else 3)
    assert seen["val batches"] == [2, 3]
    assert [flat(seen[f"val {i}"][0]) for i in (0, 1)] == [list(range(8)), list(range(12))]


@pytest.mark.parametrize("kind", ["map", *more("iterable", "plain")])
def test_an_epoch_that_ends_early_is_followed_by_a_whole_one(lightning: Runs, kind: str) -> None:
    """With ``limit_train_batches`` and ``overfit_batches``, iterators are dropped in the middle."""
    (seen,) = lightning("limits", kind=kind)
    first, second = seen["train"][0][:2], seen["train"][0][2:]

    assert first == second
    assert len(first) == 2
    assert len(seen["val 0"][0]) == 2
    assert len(seen["overfit"][0]) == 4


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["map", "streaming"])
def test_persistent_workers_stay_until_their_loader_goes(lightning: Runs, kind: str) -> None:
    """Lightning resets the iterators of loaders that it is done with."""
    (seen,) = lightning("persistent", kind=kind)

    assert seen["workers"] <= 2  # in four epochs; one may be fast enough to make all batches
    assert Counter(flat(seen["numbers"][0])) == dict.fromkeys(range(24), 4)


@pytest.mark.parametrize("ranks", [2, *more(1)])
def test_random_numbers_differ_between_epochs_batches_and_ranks(lightning: Runs, ranks: int) -> None:
    """All ranks are seeded alike. And workers do not import Lightning only to be seeded by it."""
    seen = lightning("seeded", ranks=ranks)
    noise = [number for rank in seen for number in rank["noise"]]

    assert len(set(noise)) == len(noise) == 48
    assert all("pl_worker_init_function" in rank["init"] for rank in seen)
    assert not any(framework for rank in seen for framework in rank["frameworks"])


def test_an_error_of_a_sample_comes_out_of_fit_as_it_is(lightning: Runs) -> None:
    """With its kind, and the sample's name; and nothing of the loader is left."""
    (answer,) = lightning.ask("damaged")

    assert {"UserCodeError", "ValueError"} <= set(answer["error"])
    assert answer["message"].startswith("dataset[13] raised ValueError: sample 13 is damaged")
    assert answer["left"] == []


@pytest.mark.parametrize("kind", ["map", *more("streaming")])
def test_ctrl_c_ends_the_run_and_leaves_nothing(lightning: Runs, kind: str) -> None:
    """Lightning catches it and ends the program in its own way."""
    (raised, interrupted) = lightning("interrupted", kind=kind)[0]

    assert raised in ("SystemExit", "KeyboardInterrupt")
    assert interrupted


# -- a checkpoint in mid-epoch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RESUMABLE)
def test_a_run_goes_on_where_its_checkpoint_was_made(lightning: Runs, kind: str) -> None:
    """At the first step, before and at the end of an epoch, and in the second; nothing is lost or repeated."""
    at = [1, 5, 6, 9]
    (seen,) = lightning("resumed", kind=kind, at=at)

    assert [sorted(flat(seen["whole"][i : i + 6])) for i in (0, 6, 12)] == [list(range(24))] * 3
    assert seen["rests"] == [seen["whole"][step:] for step in at]


@pytest.mark.soak
@pytest.mark.parametrize("kind", RESUMABLE)
def test_a_run_goes_on_with_another_number_of_workers(lightning: Runs, kind: str) -> None:
    """And with validation in the middle of the epoch."""
    (seen,) = lightning("resumed", kind=kind, at=[4], workers=3, val_check_interval=2)

    assert seen["rests"] == [seen["whole"][4:]]


# -- several ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "streaming"])
def test_two_ranks_share_the_samples(lightning: Runs, kind: str) -> None:
    """Each sample of each epoch on one rank, in batches from our workers, with the options that were set."""
    seen = lightning("stages", ranks=2, kind=kind)

    assert [rank["classes"] for rank in seen] == [[[OURS[kind], True]] * 5] * 2
    for epoch in (0, 1):
        assert sorted(seen[0]["epochs"][epoch] + seen[1]["epochs"][epoch]) == list(range(24))
    assert sorted(flat(seen[0]["test"][0] + seen[1]["test"][0])) == list(range(24))
    assert sorted(seen[0]["predictions"] + seen[1]["predictions"]) == list(range(22))
    assert {rank[stage][1] for rank in seen for stage in ("train", "sanity", "val 0", "test", "predict")} == {"ours"}


@pytest.mark.parametrize("kind", RESUMABLE)
def test_two_ranks_go_on_where_their_checkpoint_was_made(lightning: Runs, kind: str) -> None:
    """In the middle of an epoch, at its end, and in the next."""
    for seen in lightning("resumed", ranks=2, kind=kind, at=[2, 3, 4]):
        assert len(seen["whole"]) == 9
        assert seen["rests"] == [seen["whole"][step:] for step in (2, 3, 4)]


@pytest.mark.parametrize("kind", RESUMABLE)
@pytest.mark.parametrize("ranks", [2, *more(1)])
def test_fabric_saves_and_loads_a_loader(lightning: Runs, ranks: int, kind: str) -> None:
    """It wraps a map-style one in one of its own, which gives each rank its share; it does not take the other kind."""
    seen = lightning("fabric", ranks=ranks, kind=kind, at=1)

    assert sorted(flat([batch for rank in seen for batch in rank["whole"]])) == list(range(24))
    for rank in seen:
        assert rank["classes"] == [[OURS[kind], True]]
        assert rank["makers"] == ("ours" if kind == "map" else "threads")
        assert rank["rest"] == rank["whole"][1:]
        assert rank["length"] == 6 // ranks
