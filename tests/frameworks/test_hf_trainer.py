"""The Trainer of transformers, whose loaders are built by Accelerate: they can be ours, and a run can go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from framework_runs import Runs, opened


@pytest.fixture(scope="session")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield from opened("runs_transformers", tmp_path_factory.mktemp("transformers"))


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


# -- one process -------------------------------------------------------------------------------------------------------


def test_loaders_of_the_trainer_are_ours_in_training_evaluation_and_prediction(transformers: Runs) -> None:
    """By one line around it."""
    (seen,) = transformers("trained")

    assert seen["class"] == ["antifreeze.loaders.dataloader", 77]
    assert [sorted(flat(seen["train"][0][i : i + 6])) for i in (0, 6)] == [list(range(24))] * 2
    assert seen["train"][0][:6] != seen["train"][0][6:]
    assert flat(seen["eval"][0]) == [*range(10), *range(9)]
    assert seen["predictions"] == list(range(9))
    assert {seen["train"][1], seen["eval"][1]} == {"ours"}
    assert seen["steps"] == 12
    assert len(set(seen["noise"])) == 48
    assert not seen["framework"]  # workers do not import transformers only to be seeded by it


def test_settings_of_the_trainer_reach_our_loader(transformers: Runs) -> None:
    """Its samplers, ``drop_last``, persistent workers, accumulation."""
    settings = {"dataloader_drop_last": True, "dataloader_persistent_workers": True, "gradient_accumulation_steps": 2}
    (seen,) = transformers("trained", num_rows=22, **settings, train_sampling_strategy="sequential")

    assert flat(seen["train"][0]) == [*range(20), *range(20)]
    assert seen["sampler"] == "SequentialSampler"
    assert seen["steps"] == 6
    assert seen["train"][1] == "ours"


def test_an_iterable_dataset_is_read_by_our_workers(transformers: Runs) -> None:
    """It has no length, so ``max_steps`` says when to stop; it begins anew when it ends."""
    (seen,) = transformers("trained", iterable=True, max_steps=8)

    assert sorted(flat(seen["train"][0][:6])) == list(range(24))
    assert seen["train"][0][6:] == seen["train"][0][:2]
    assert seen["train"][1] == "ours"


def test_a_streaming_loader_takes_the_place_of_the_trainers(transformers: Runs) -> None:
    """By methods that the Trainer has for it."""
    (seen,) = transformers("streamed")

    assert [sorted(flat(seen["train"][0][i : i + 6])) for i in (0, 6)] == [list(range(24))] * 2
    assert seen["train"][0][:6] != seen["train"][0][6:]
    assert flat(seen["eval"][0]) == [*range(16), *range(16)]
    assert seen["predictions"] == list(range(16))
    assert [seen["train"][1], seen["eval"][1]] == ["ours", "threads"]
    assert seen["steps"] == 12


def test_a_streaming_dataset_can_be_read_row_by_row(transformers: Runs) -> None:
    """The slow way, without any change."""
    (seen,) = transformers("row_by_row")

    assert sorted(flat(seen[0])) == sorted([*range(24), *range(24)])


@pytest.mark.parametrize("kind", ["map", "streaming"])
def test_a_run_goes_on_from_its_checkpoint(transformers: Runs, kind: str) -> None:
    """A map-style one by skipping batches, which is the Trainer's way; a streaming one by its state."""
    at = [1, 6, 9]
    ((whole, *rests),) = transformers("resumed", kind=kind, at=at)

    assert len(whole[0]) == 12
    assert [rest[0] for rest in rests] == [whole[0][step:] for step in at]
    assert [rest[1:] for rest in rests] == [["ours" if kind == "map" else "threads", 12]] * 3


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["map", "streaming"])
def test_a_run_with_accumulation_goes_on_from_its_checkpoint(transformers: Runs, kind: str) -> None:
    """The Trainer asks for several batches at a time, and saves when it has used them."""
    ((whole, rest),) = transformers("resumed", kind=kind, at=[2], gradient_accumulation_steps=2)

    assert rest[0] == whole[0][4:]
    assert rest[2] == whole[2] == 6


def test_an_error_of_a_sample_comes_out_of_train_as_it_is(transformers: Runs) -> None:
    """With its kind, and the sample's name; and nothing of the loader is left."""
    (answer,) = transformers.ask("damaged")

    assert {"UserCodeError", "ValueError"} <= set(answer["error"])
    assert answer["message"].startswith("dataset[13] raised ValueError: sample 13 is damaged")
    assert answer["left"] == []


def test_ctrl_c_leaves_nothing_of_the_trainers_loaders(transformers: Runs) -> None:
    """The fixture looks for processes and threads."""
    assert transformers("interrupted") == ["interrupted"]


# -- two ranks ---------------------------------------------------------------------------------------------------------


def test_two_ranks_of_the_trainer_share_the_samples(transformers: Runs) -> None:
    """Each comes once in each epoch, in training, evaluation and prediction."""
    seen = transformers("trained", ranks=2)

    for epoch in (0, 3):
        both = seen[0]["train"][0][epoch : epoch + 3] + seen[1]["train"][0][epoch : epoch + 3]
        assert sorted(flat(both)) == list(range(24))
    assert [rank["predictions"] for rank in seen] == [list(range(9))] * 2
    assert {rank["train"][1] for rank in seen} == {"ours"}
    assert len({number for rank in seen for number in rank["noise"]}) == 48


def test_two_ranks_of_a_streaming_trainer_share_the_rows(transformers: Runs) -> None:
    """The loader finds its rank by itself."""
    seen = transformers("streamed", ranks=2)

    for epoch in (0, 3):
        both = seen[0]["train"][0][epoch : epoch + 3] + seen[1]["train"][0][epoch : epoch + 3]
        assert sorted(flat(both)) == list(range(24))
    assert [rank["predictions"] for rank in seen] == [list(range(16))] * 2
    assert Counter(flat([b for rank in seen for b in rank["eval"][0]])) == dict.fromkeys(range(16), 2)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["map", "streaming"])
def test_two_ranks_of_the_trainer_go_on_from_their_checkpoint(transformers: Runs, kind: str) -> None:
    """The checkpoint has what rank 0 has saved."""
    for whole, *rests in transformers("resumed", ranks=2, kind=kind, at=[2, 4]):
        assert [rest[0] for rest in rests] == [whole[0][2:], whole[0][4:]]
