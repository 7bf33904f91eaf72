"""A run that was stopped goes on where it was, on any number of ranks and workers, and nobody gets a sample twice."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import antifreeze as af
from conftest import write

NO_SHRINKING = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
SIZES = (97, 211, 40)
NUM_ROWS = sum(SIZES)


@functools.cache
def folder() -> Path:
    """Return a folder of files whose row groups divide nothing."""
    place = Path(tempfile.mkdtemp(prefix="antifreeze-test-"))
    write(place, list(SIZES), group_rows=13)
    return place


def single() -> af.StreamingDataset:
    return af.StreamingDataset(folder(), columns=["n"], format="numpy")


def listed() -> af.StreamingDataset:
    return single().subset([(7 * i) % NUM_ROWS for i in range(150)])


def combined(**options: Any) -> af.CombinedStreamingDataset:
    parts = [single().subset(range(60)), single().subset(range(60, 200)), single().subset(range(200, 345))]
    return af.CombinedStreamingDataset(parts, **options)


def parallel(**options: Any) -> af.ParallelStreamingDataset:
    parts = [single().subset(range(61)), single().subset(range(61, 200))]
    return af.ParallelStreamingDataset(parts, **options)


DATASETS: dict[str, Callable[[], Any]] = {
    "single": single,
    "list": listed,
    "split": lambda: af.train_test_split(single(), [0.7, 0.3])[0],
    "subsample": lambda: af.subsample(single(), 1.3),
    "combined": combined,
    "weights": lambda: combined(weights=[3, 1, 0]),
    "first": lambda: combined(weights=[1, 1, 2], iterate_over_all=False),
    "schedule": lambda: combined(weights=lambda step: (1, step, 2)),
    "per stream": lambda: combined(batching_method="per_stream"),
    "per stream, schedule": lambda: combined(
        batching_method="per_stream", weights=lambda step: (1, step, 2), iterate_over_all=False
    ),
    "parallel": parallel,
    "cycling": lambda: parallel(length="longest"),
    "length": lambda: parallel(length=100),
    "long": lambda: parallel(length=400),
    "repeated": lambda: parallel(length=100, resume=False),
}


@dataclass(frozen=True)
class Run:
    """How a job is run."""

    dataset: str = "single"
    ranks: int = 1
    global_batch: int = 12
    num_workers: int = 0
    shuffle: bool = True
    drop_last: bool = False
    lanes: int | None = None
    seed: int = 3

    def loaders(self) -> list[af.StreamingDataLoader]:
        """Return the loader of each rank."""
        return [
            af.StreamingDataLoader(
                DATASETS[self.dataset](),
                batch_size=self.global_batch // self.ranks,
                shuffle=self.shuffle,
                num_workers=self.num_workers,
                drop_last=self.drop_last,
                seed=self.seed,
                rank=rank,
                world_size=self.ranks,
                lanes=self.lanes
                if "per stream" not in self.dataset or self.lanes != 5
                else None,  # must divide a batch
            )
            for rank in range(self.ranks)
        ]

    def steps(self, state: str | None = None, epochs: int = 1) -> Iterator[tuple[list[Any], str]]:
        """Yield the samples of each global step, and the state after it; padding is left out."""
        loaders = self.loaders()
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(state))
        for _ in range(epochs):
            assert len({len(loader) for loader in loaders}) == 1
            at = loaders[0].state_dict()["sample"]
            for batches in itertools.zip_longest(*loaders):
                assert None not in batches, "a rank has fewer batches than another"
                states = {json.dumps(loader.state_dict()) for loader in loaders}
                assert len(states) == 1, "a state means the same on every rank"
                place = loaders[0]._run.position
                left = loaders[0].dataset.row_source.num_rows(place.lanes or 1, self.global_batch) - at
                at += self.global_batch
                # Ranks for which no sample is left repeat one.
                assert all(len(numbers(batch)) == 1 for batch in batches[max(left, 0) :])
                yield sorted(itertools.chain(*map(numbers, batches[:left]))), states.pop()


def numbers(batch: Any) -> list[Any]:
    """Return what tells the samples of a batch apart."""
    if isinstance(batch, tuple):
        return list(zip(*(part["n"].tolist() for part in batch), strict=True))
    return list(batch["n"].tolist())


def numbers_of_row(row: Any) -> list[Any]:
    """Return what tells a row from others."""
    return [tuple(int(part["n"]) for part in row)] if isinstance(row, tuple) else [int(row["n"])]


runs = st.builds(
    Run,
    dataset=st.sampled_from(sorted(DATASETS)),
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    lanes=st.sampled_from([None, 1, 2, 5, 12]),
    seed=st.integers(0, 3),
)


@given(runs, st.sampled_from([1, 2, 3, 4, 6, 12]), st.data())
@settings(deadline=None, max_examples=settings().max_examples // 4, phases=NO_SHRINKING)
def test_a_run_goes_on_with_any_number_of_ranks(run: Run, ranks: int, data: st.DataObject) -> None:
    """The steps are those of the undisturbed run, in this epoch and in the next one."""
    whole = list(run.steps(epochs=2))
    stop = data.draw(st.integers(1, len(whole) - 1))
    other = replace(run, ranks=ranks, lanes=None)
    rest = [step for step, _ in other.steps(whole[stop - 1][1], epochs=2)][: len(whole) - stop]

    expected = [step for step, _ in whole[stop:]]
    assert rest == expected


@given(runs)
@settings(deadline=None, max_examples=settings().max_examples // 4, phases=NO_SHRINKING)
def test_an_epoch_has_every_sample_once(run: Run) -> None:
    """On any number of ranks."""
    found = sorted(itertools.chain(*(step for step, _ in run.steps())))
    expected = sorted(itertools.chain(*(numbers_of_row(row) for row in DATASETS[run.dataset]())))

    if run.drop_last or run.dataset in ("first", "parallel", "cycling", "length", "long", "repeated"):
        assert len(found) == len(set(found)) or run.dataset in ("subsample", "list", "long")
    else:
        assert found == expected


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_the_order_does_not_depend_on_workers(name: str) -> None:
    """Neither does that of what is left."""
    runs = [list(Run(dataset=name, ranks=2, num_workers=workers).steps()) for workers in (0, 1, 3)]

    assert runs[0] == runs[1] == runs[2]
    state = runs[0][4][1]
    rests = [list(Run(dataset=name, ranks=2, num_workers=workers).steps(state)) for workers in (0, 2)]
    assert rests[0] == rests[1] == runs[0][5:]


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_state_is_small_and_plain(name: str) -> None:
    """It goes into JSON, and tells nobody where the data stand."""
    (loader,) = Run(dataset=name).loaders()
    next(iter(loader))
    text = json.dumps(loader.state_dict())

    assert len(text) < 2000
    assert str(folder()) not in text
    assert "/" not in text


def test_what_was_prefetched_does_not_count() -> None:
    """Decoders run ahead of the loop; the state is the loop's."""
    (loader,) = Run(num_workers=2).loaders()
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["sample"] == 12
    next(iterator)
    assert loader.state_dict()["sample"] == 24


@pytest.mark.parametrize("drawn", [False, True])
def test_the_end_of_an_epoch_is_the_beginning_of_the_next(drawn: bool) -> None:
    """Whether the loop has heard of the end or not: an epoch must not be left out."""
    run = Run()
    (loader,) = run.loaders()
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    if drawn:
        assert next(iterator, None) is None
    state = loader.state_dict()

    assert (state["epoch"], state["sample"]) == (1, 0)
    expected = [step for step, _ in run.steps(epochs=2)][len(loader) :]
    assert [step for step, _ in run.steps(json.dumps(state))] == expected


def test_an_iterator_that_is_thrown_away_takes_nothing() -> None:
    """Frameworks make some."""
    run = Run()
    whole = [step for step, _ in run.steps()]
    (loader,) = run.loaders()
    loader.load_state_dict(json.loads(_state_after(run, 3)))
    iter(loader)
    iter(loader)

    assert [sorted(numbers(batch)) for batch in loader] == whole[3:]


def _state_after(run: Run, steps: int) -> str:
    return list(itertools.islice(run.steps(), steps))[-1][1]


def test_saving_after_loading_gives_the_same_state() -> None:
    """A job that is stopped again before it has done anything loses nothing."""
    run = Run()
    state = json.loads(_state_after(run, 5))
    (loader,) = run.loaders()
    loader.load_state_dict(state)

    assert loader.state_dict() == state


def test_set_epoch_keeps_the_position_of_its_epoch() -> None:
    """Frameworks call it for the epoch that they resume; another epoch begins at its beginning."""
    run = Run()
    whole = [step for step, _ in run.steps(epochs=2)]
    (loader,) = run.loaders()
    state = json.loads(_state_after(run, 5))
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert [sorted(numbers(batch)) for batch in loader] == whole[5 : len(loader)]
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert [sorted(numbers(batch)) for batch in loader] == whole[len(loader) :]


def test_an_empty_state_is_no_state() -> None:
    """Frameworks give it where nothing was saved."""
    (loader,) = Run().loaders()
    loader.load_state_dict({})

    assert loader.state_dict()["sample"] == 0


# -- what cannot go on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed=3, this loader has 4"),
        ({"shuffle": False}, "shuffle=True, this loader has False"),
        ({"drop_last": True}, "drop_last=False, this loader has True"),
        ({"dataset": "split"}, "rows=348, this loader has 243"),
        ({"lanes": 7}, "lanes=1, this loader has 7"),
    ],
)
def test_a_state_of_another_run_is_refused(
    change: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What differs is named; who wants to go on all the same is told what that costs."""
    run = Run(lanes=1)
    state = json.loads(_state_after(run, 3))
    (loader,) = replace(run, **change).loaders()
    with pytest.raises(af.StateMismatch, match=named):
        loader.load_state_dict(state)
    with caplog.at_level(logging.WARNING, "antifreeze"):
        loader.load_state_dict(state, strict=False)

    assert named in caplog.text
    assert "may be repeated or left out" in caplog.text
    assert list(loader)


def test_another_global_batch_is_refused_with_the_one_that_fits(caplog: pytest.LogCaptureFixture) -> None:
    """Steps would be made of other samples. With strict=False each sample still comes once."""
    run = Run()
    steps = list(itertools.islice(run.steps(), 3))
    other = replace(run, ranks=2, global_batch=20)
    loaders = other.loaders()
    for loader in loaders:
        loader.load_state_dict(json.loads(steps[-1][1]))
    with pytest.raises(af.StateMismatch, match=r"batch_size x ranks=12, this loader has 20") as caught:
        next(iter(loaders[0]))
    assert "batch_size=6 keeps it on 2 ranks" in str(caught.value)

    seen = list(itertools.chain(*(step for step, _ in steps)))
    with caplog.at_level(logging.WARNING, "antifreeze"):
        for loader in loaders:
            loader.load_state_dict(json.loads(steps[-1][1]), strict=False)
            for batch in loader:
                seen += numbers(batch)
    assert sorted(seen) == list(range(NUM_ROWS))


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 3},
        [1],
        "state",
        {"version": 1, "kind": "DataLoader"},
        {"version": 99, "kind": "StreamingDataLoader"},
        {"version": 1, "kind": "StreamingDataLoader", "epoch": -1},
        {
            "version": 1,
            "kind": "StreamingDataLoader",
            "epoch": 0,
            "sample": "x",
            "lanes": 1,
            "windows": [1],
            "streams": [1],
        },
    ],
)
def test_what_is_not_a_state_is_refused(state: Any) -> None:
    """A file that was cut, a state of another loader."""
    (loader,) = Run().loaders()
    with pytest.raises(af.StateMismatch):
        loader.load_state_dict(state)


def test_ranks_that_do_not_divide_the_lanes_are_told_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and not by every rank."""
    state = _state_after(Run(lanes=4, ranks=4), 3)
    with caplog.at_level(logging.WARNING, "antifreeze"):
        list(Run(ranks=6).steps(state))

    (record,) = caplog.records
    assert record.message == (
        "antifreeze: 6 ranks do not divide the 4 lanes of this run, so every row is decoded by 3 ranks. Each sample is "
        "still delivered once. A new run with lanes=12 can use this number of ranks at no cost"
    )


# -- transforms ----------------------------------------------------------------------------------------------------


def _noise(row: dict[str, Any]) -> dict[str, Any]:
    import random

    return {**row, "noise": random.random()}  # noqa: S311


def _dies_once(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] in (30, 31):
        raise ValueError("bad row")
    return _noise(row)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_numbers_go_on_as_well(num_workers: int) -> None:
    """A batch is the same bytes, whether the run was interrupted before it or not."""

    def make(workers: int) -> af.StreamingDataLoader:
        dataset = af.StreamingDataset(folder(), columns=["n"], format="numpy", transform=_noise, shuffle=True)
        return af.StreamingDataLoader(dataset, batch_size=16, num_workers=workers)

    def plain(batch: Any) -> list[tuple[int, float]]:
        return list(zip(batch["n"].tolist(), batch["noise"].tolist(), strict=True))

    whole = [plain(batch) for batch in make(0)]
    first = make(num_workers)
    for _ in itertools.islice(first, 7):
        pass
    second = make(2 - num_workers)
    second.load_state_dict(first.state_dict())

    assert [plain(batch) for batch in second] == whole[7:]
    assert len({noise for batch in whole for _, noise in batch}) == NUM_ROWS


@pytest.mark.parametrize("num_workers", [0, 2])
def test_steps_of_which_nothing_is_left_count(num_workers: int) -> None:
    """Rows that are skipped leave a hole, not a shift."""
    dataset = af.StreamingDataset(folder(), columns=["n"], format="numpy", transform=_dies_once)
    made = {"batch_size": 2, "num_workers": num_workers, "on_error": "skip"}
    loader = af.StreamingDataLoader(dataset, **made)
    before = [batch["n"].tolist() for batch in itertools.islice(loader, 20)]
    assert loader.state_dict()["sample"] == 42
    again = af.StreamingDataLoader(dataset, **made)
    again.load_state_dict(loader.state_dict())
    after = [batch["n"].tolist() for batch in again]

    assert list(itertools.chain(*before, *after)) == [row for row in range(NUM_ROWS) if row not in (30, 31)]
