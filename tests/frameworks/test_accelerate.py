"""Accelerate moves batches, shards and counts as it does for torch's loader; the workers stay ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from framework_runs import Runs, opened

from conftest import more

KINDS = ("map", "iterable", "streaming", "plain")
RESUMABLE = ("map", "plain")
OPTIONS = {"on_error": "skip", "stall_limit": 77.0, "max_restarts": 5}


@pytest.fixture(scope="session")
def accelerate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield from opened("runs_accelerate", tmp_path_factory.mktemp("accelerate"))


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_prepared_loader_keeps_its_workers_and_its_options(accelerate: Runs, kind: str) -> None:
    """``accelerator.prepare`` builds a loader of torch's from the attributes of the one it gets."""
    (answer,) = accelerate.ask("epoch", kind=kind, gradient_accumulation_steps=4)
    seen = answer["result"]

    assert "antifreeze:" not in answer["output"]  # no warning
    assert [sorted(flat(epoch)) for epoch in seen["epochs"]] == [list(range(24))] * 2
    assert seen["makers"] == ("threads" if kind == "plain" else "ours")
    assert seen["class"].startswith("antifreeze.")
    assert seen["options"] == OPTIONS
    assert seen["again"]
    assert seen["length"] == (None if kind == "iterable" else 6)
    # 6 batches, 4 to a step: the last two of an epoch are a step of their own.
    assert seen["synced"] == [False, False, False, True, False, True] * 2


@pytest.mark.parametrize("kind", RESUMABLE)
def test_each_epoch_of_a_prepared_loader_has_its_own_order(accelerate: Runs, kind: str) -> None:
    """Accelerate tells the loader which epoch it is at."""
    first, second = accelerate("epoch", kind=kind, shuffle=True)[0]["epochs"]

    assert flat(first) != flat(second)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(24))


def test_without_our_function_accelerate_reads_with_torchs_workers_and_a_warning_says_so(accelerate: Runs) -> None:
    """Should this fail one day, then Accelerate has learned to keep a loader."""
    (answer,) = accelerate.ask("plainly_prepared")

    assert answer["result"] == "torch"
    assert answer["output"].count("accelerator.prepare() builds one of torch's loaders from this one") == 1
    assert "its workers are forked from this process, not antifreeze's" in answer["output"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_workers": 0}, ""),
        ({"num_workers": 0, "stall_limit": 60}, ""),
        ({"num_workers": 0, "on_error": "skip"}, "from this one: on_error has no effect. "),
        ({"num_workers": 2, "multiprocessing_context": "spawn"}, "its workers are torch's (spawn), not antifreeze's. "),
        ({"num_workers": 2, "max_restarts": 3, "stall_limit": 60}, " and stall_limit, max_restarts have no effect. "),
    ],
)
def test_the_warning_says_what_is_lost_and_nothing_else(accelerate: Runs, options: dict[str, Any], said: str) -> None:
    """Without workers, and without arguments of ours, a loader of torch's does the same."""
    (answer,) = accelerate.ask("only_prepared", options=options)

    assert said in answer["output"]
    assert ("accelerator.prepare() builds" in answer["output"]) == bool(said)
    assert "forked" not in answer["output"] or (options["num_workers"] and "multiprocessing_context" not in options)


def test_loaders_that_accelerate_builds_can_be_ours(accelerate: Runs) -> None:
    """In a ``with`` block, those of torch, and those that are built again to skip batches; outside of it, not."""
    (seen,) = accelerate("inside")

    assert flat(seen["whole"]) == list(range(24))
    assert seen["rest"] == seen["whole"][2:]
    assert seen["makers"] == ["ours", "ours"]
    assert seen["stall_limit"] == 33
    assert seen["outside"] == "torch.utils.data.dataloader"


def test_an_option_that_is_torchs_is_refused(accelerate: Runs) -> None:
    """It would be overwritten by what Accelerate passes."""
    (answer,) = accelerate.ask("misnamed")

    assert "ConfigError" in answer["error"]
    assert answer["message"].startswith("antifreeze_loaders() does not take num_workers")


def test_torchdatas_loader_is_refused(accelerate: Runs) -> None:
    """It would read in our stead, without a word."""
    (answer,) = accelerate.ask("stateful")

    assert "ConfigError" in answer["error"]
    assert "use_stateful_dataloader" in answer["message"]


@pytest.mark.parametrize("kind", RESUMABLE)
def test_save_state_keeps_the_position(accelerate: Runs, kind: str) -> None:
    """Accelerate is one batch ahead of the loop; the state is that of the loop. Another number of workers will do."""
    at = [1, 5, 6, 9]
    (seen,) = accelerate("resumed", kind=kind, at=at, workers=1)

    assert seen["rests"] == [seen["whole"][step:] for step in at]
    assert seen["makers"] == ("ours" if kind == "map" else "threads")


def test_an_error_of_a_sample_comes_out_of_the_loop_as_it_is(accelerate: Runs) -> None:
    """With its kind, and the sample's name; and nothing of the loader is left."""
    (answer,) = accelerate.ask("damaged")

    assert {"UserCodeError", "ValueError"} <= set(answer["error"])
    assert answer["message"].startswith("dataset[13] raised ValueError: sample 13 is damaged")
    assert answer["left"] == []


@pytest.mark.parametrize("kind", ["map", *more("plain")])
def test_ctrl_c_leaves_nothing_of_a_prepared_loader(accelerate: Runs, kind: str) -> None:
    """The fixture looks for processes and threads."""
    assert accelerate("interrupted", kind=kind) == ["interrupted"]


# -- two ranks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("map", {"shuffle": True}),
        ("iterable", {}),
        ("plain", {"shuffle": True}),
        *more(
            ("map", {"split_batches": True}),
            ("map", {"use_seedable_sampler": True, "shuffle": True}),
            ("iterable", {"split_batches": True}),
        ),
    ],
    ids=str,
)
def test_two_ranks_share_the_samples_of_each_epoch(accelerate: Runs, kind: str, settings: dict[str, bool]) -> None:
    """Each comes once, on one of them, in as many batches on both."""
    seen = accelerate("epoch", ranks=2, kind=kind, **settings)

    for epoch in (0, 1):
        assert sorted(flat(seen[0]["epochs"][epoch] + seen[1]["epochs"][epoch])) == list(range(24))
        assert len(seen[0]["epochs"][epoch]) == len(seen[1]["epochs"][epoch])
    assert {rank["class"].partition(".")[0] for rank in seen} == {"antifreeze"}
    assert {rank["makers"] for rank in seen} == {"threads" if kind == "plain" else "ours"}


def test_what_accelerate_repeats_to_make_ranks_even_is_its_own_business(accelerate: Runs) -> None:
    """22 samples in batches of 4: ``even_batches`` takes two more from the beginning; without, a batch is short."""
    even = accelerate("epoch", ranks=2, kind="map", num_rows=22)
    uneven = accelerate("epoch", ranks=2, kind="map", num_rows=22, even_batches=False)

    assert Counter(flat([b for rank in even for b in rank["epochs"][0]])) == Counter([*range(22), 0, 1])
    assert Counter(flat([b for rank in uneven for b in rank["epochs"][0]])) == Counter(range(22))


def test_rows_can_be_gathered_whatever_their_number(accelerate: Runs) -> None:
    """The last batches of two ranks can differ by a row; ``gather`` needs them alike, and no row is counted twice."""
    lengths = [24, 23, 21, 17]
    seen = accelerate("gathered", ranks=2, num_rows=lengths)

    assert seen[0] == seen[1]
    assert [sorted(flat(batches)) for batches in seen[0]] == [list(range(length)) for length in lengths]


@pytest.mark.soak
def test_three_ranks_can_gather_too(accelerate: Runs) -> None:
    """Two of them repeat a row in the last batch, and Accelerate can only cut off what is at the end."""
    ((batches,), *_) = accelerate("gathered", ranks=3, num_rows=[16])

    assert set(flat(batches)) == set(range(16))
    assert len(flat(batches)) == 18


@pytest.mark.soak
@pytest.mark.parametrize("kind", RESUMABLE)
def test_two_ranks_go_on_from_a_saved_state(accelerate: Runs, kind: str) -> None:
    """In the middle of an epoch, at its end, and in the next."""
    at = [2, 3, 4]
    for rank in accelerate("resumed", ranks=2, kind=kind, at=at):
        assert rank["rests"] == [rank["whole"][step:] for step in at]
