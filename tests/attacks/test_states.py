"""States that were damaged, by accident or on purpose: refused at once, or the rest of an epoch that was planned."""

from __future__ import annotations

import functools
import itertools
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data as tud
from hostile_values import CYCLE, LONG_TEXT, VALUES, WIDE_DICT, deep, deep_dict, mutated

import antifreeze as af
from conftest import write

LIMIT_S = 2.0
"""For a state to be refused. It takes a millisecond; a loaded machine may be slow, but no loop fits in here."""
MAX_GROWTH_KB = 200_000
MAX_MESSAGE_CHARS = 3000
BATCH = 12


@functools.cache
def folder() -> Path:
    place = Path(tempfile.mkdtemp(prefix="antifreeze-test-"))
    write(place, [97, 211, 40], group_rows=13)
    return place


def rows(*bounds: int) -> Any:
    dataset = af.StreamingDataset(folder(), columns=["n"], format="numpy")
    return dataset.subset(range(*bounds)) if bounds else dataset


def combined(**options: Any) -> Any:
    return af.CombinedStreamingDataset([rows(60), rows(60, 200), rows(200, 345)], **options)


def parallel(**options: Any) -> Any:
    return af.ParallelStreamingDataset([rows(61), rows(61, 200)], **options)


DATASETS: dict[str, Callable[[], Any]] = {
    "single": rows,
    "combined": combined,
    "first": lambda: combined(weights=[1, 1, 2], iterate_over_all=False),
    "per stream": lambda: combined(batching_method="per_stream"),
    "parallel": parallel,
    "cycling": lambda: parallel(length=100),
    "endless": lambda: parallel(length=float("inf")),
}


def streaming(name: str, **options: Any) -> af.StreamingDataLoader:
    options = {"batch_size": BATCH, "shuffle": True, "rank": 0, "world_size": 1, **options}
    return af.StreamingDataLoader(DATASETS[name](), **options)


def numbers(batch: Any) -> list[Any]:
    if isinstance(batch, tuple):
        return list(zip(*(part["n"].tolist() for part in batch), strict=True))
    return list(batch["n"].tolist())


def delivered(loader: Any, most: int = 60) -> list[Any]:
    """Return the rows of an epoch, or of the beginning of one without an end."""
    return [number for batch in itertools.islice(loader, most) for number in numbers(batch)]


def loads(loader: Any, state: Any, **options: Any) -> bool:
    """Load a state; return False if it was refused as it should be: soon, and in a few words."""
    began_s = time.monotonic()
    try:
        loader.load_state_dict(state, **options)
    except af.StateMismatch as refusal:
        error = refusal
    else:
        return True
    assert time.monotonic() - began_s < LIMIT_S
    assert len(str(error)) < MAX_MESSAGE_CHARS
    return False


def grown_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# -- streaming -----------------------------------------------------------------------------------------------------


@functools.cache
def saved(name: str, steps: int, drop_last: bool) -> str:
    loader = streaming(name, drop_last=drop_last)
    assert sum(1 for _ in itertools.islice(loader, steps)) == steps
    return json.dumps(loader.state_dict())


def check_streaming(seed: int) -> bool:
    """Change one state; return whether it was accepted."""
    rng = random.Random(seed)  # noqa: S311
    name, drop_last = rng.choice(sorted(DATASETS)), rng.random() < 0.5
    state, _ = mutated(json.loads(saved(name, rng.choice([0, 1, 4]), drop_last)), rng)
    strict = rng.random() < 0.7
    loader = streaming(name, drop_last=drop_last)
    if not loads(loader, state, strict=strict):
        return False
    try:
        found = delivered(loader)
    except af.StateMismatch:
        return False
    assert found, f"an empty epoch of {name} without a word: {str(state)[:500]}"
    whole = streaming(name, drop_last=drop_last)
    whole.load_state_dict(state and state | {"sample": 0}, strict=strict)
    planned = delivered(whole, 60 if name != "endless" else 80)
    sample = state["sample"] if state else 0
    rest = planned[sample:]
    assert found[: len(rest)] == rest[: len(found)]
    assert abs(len(found) - len(rest)) < BATCH or name == "endless"
    if name == "single":
        assert max(Counter(planned).values()) == 1
    return True


def test_a_changed_state_is_refused_or_gives_the_planned_rest() -> None:
    """Some of the changes do no harm, such as another epoch."""
    before_kb = grown_kb()
    accepted = [check_streaming(seed) for seed in range(300)]

    assert 10 < sum(accepted) < 200
    assert grown_kb() - before_kb < MAX_GROWTH_KB


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 21_000, 1000))
def test_thousands_of_changed_states(first: int) -> None:
    """The same, for long."""
    before_kb = grown_kb()
    for seed in range(first, first + 1000):
        check_streaming(seed)
    assert grown_kb() - before_kb < MAX_GROWTH_KB


def damage(name: str = "single", **changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(saved(name, 4, False)) | changes
    return {key: value for key, value in state.items() if value is not KeyError}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("single", {"lanes": 10**6}, "state['lanes']: expected an integer from 1 to 65536, got 1000000"),
        ("single", {"sample": 10**18}, "state['sample']: expected an integer from 0 to 347, got 1000000000000000000"),
        ("first", {"sample": 300}, "state['sample']: expected an integer from 0 to"),
        ("single", {"sample": 348}, "expected an integer from 0 to 347, got 348"),
        ("single", {"sample": -1}, "expected an integer from 0 to 4611686018427387904, got -1"),
        ("single", {"sample": True}, "state['sample']: expected an integer"),
        ("single", {"sample": float("nan")}, "got nan"),
        ("single", {"sample": 10**5000}, "got an integer of 16610 bits"),
        ("single", {"version": 10**5000}, "the state has version an integer of 16610 bits"),
        ("single", {"version": True}, "this is not a state"),
        ("single", {"version": 0}, "version: expected an integer >= 1, got 0"),
        ("single", {"kind": LONG_TEXT}, "another kind of loader: xxx"),
        ("single", {"kind": 7}, "this is not a state"),
        ("single", {"epoch": 1 << 41}, "state['epoch']"),
        ("single", {"windows": deep()}, "state['windows'][0]: expected an integer"),
        ("single", {"windows": CYCLE}, "state['windows'][0]: expected an integer"),
        ("single", {"windows": [1 << 21]}, "from 1 to 1048576, got 2097152"),
        ("single", {"windows": [1] * 10**6}, "expected a list of at most 16384 entries"),
        ("single", {"windows": [1, 1]}, "as many windows as streams"),
        ("single", {"windows": [], "streams": []}, "as many windows as streams"),
        ("single", {"lanes": None}, "as many windows as streams"),
        ("single", {"lanes": None, "windows": [], "streams": []}, "expected 0 in a run that has not begun, got 48"),
        ("single", {"streams": [17]}, "from 1 to 16, got 17"),
        ("single", {"seed": deep_dict()}, "state['seed']: expected None, True, False, a number or a short text"),
        ("single", {"seed": "²"}, "saved with seed='²', this loader has"),
        ("single", {"data": LONG_TEXT}, "and 2999800 more"),
        ("single", {"shuffle": 1}, "state['shuffle']: expected True or False, got 1"),
        ("single", {"rows": KeyError}, "expected an entry 'rows'"),
        ("single", {"colour": 1}, "a name in state: expected one of version, kind, epoch"),
        ("single", WIDE_DICT, "expected a dict of 13 to 13 entries"),
        ("combined", {"windows": [9], "streams": [9]}, ""),
        ("per stream", {"lanes": 5}, "state['lanes']: expected a divisor of 12, got 5"),
    ],
)
def test_what_a_state_cannot_say_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    """What was expected and what was got, when the state is loaded and not when the first batch is."""
    state = damage(name, **changes)
    loader = streaming(name)
    if not words:
        loads(loader, state)
        assert delivered(loader)
        return
    with pytest.raises(af.StateMismatch) as caught:
        loader.load_state_dict(state)
    assert words in caught.value.message
    assert len(str(caught.value)) < MAX_MESSAGE_CHARS
    assert len(delivered(loader)) == len(delivered(streaming(name))), "a refused state leaves the loader as it was"


@pytest.mark.parametrize("state", [[], 0, False, "", (), b"", 1.0, [{}], object(), LONG_TEXT, deep(), CYCLE])
def test_what_is_no_mapping_is_no_state(state: Any) -> None:
    """Not even if it is empty."""
    for loader in (streaming("single"), af.DataLoader(list(range(10)))):
        with pytest.raises(af.StateMismatch, match="this is not a state"):
            loader.load_state_dict(state)


def test_notes_of_frameworks_are_let_pass() -> None:
    """Accelerate adds ``_iterator_finished`` to every state."""
    loader = streaming("single")
    loader.load_state_dict(damage(_iterator_finished=True))

    assert delivered(loader) == delivered(streaming("single"))[48:]


def test_a_window_that_would_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    """A window is as many rows as the state says, so rows of 8 KB make a million of them a bomb."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": pa.array([b"x" * 8192] * 64)}), tmp_path / "a.parquet")
    loader = af.StreamingDataLoader(af.StreamingDataset(tmp_path, shuffle=True, format="numpy"), batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state | {"windows": [1 << 20]})
    with pytest.raises(af.StateMismatch, match=r"state\['windows'\]\[0\]: expected an integer from 1 to"):
        next(iter(loader))


def test_refusing_takes_a_moment() -> None:
    """Each of the hostile values in each of the places, in a time that no loop over them would fit in."""
    state = damage()
    began_s, count = time.monotonic(), 0
    for key, value in itertools.product(state, VALUES):
        loader = streaming("single")
        loads(loader, state | {key: value})
        count += 1
    assert (time.monotonic() - began_s) / count < 0.2


# -- DataLoader ----------------------------------------------------------------------------------------------------


class Stream(tud.IterableDataset[int]):
    """Numbers; with a state if it is to have one."""

    def __iter__(self) -> Iterator[int]:
        yield from range(40)


class Counted(tud.IterableDataset[int]):
    """Numbers, and a state that says how many were given."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        start, self.at = self.at, 0
        for number in range(start, 40):
            self.at = number + 1
            yield number
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"] + 0


class Resumable(tud.Sampler[int]):
    """A sampler with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        while self.at < 40:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"] + 0


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: af.DataLoader(range(40), batch_size=3),
    "shuffled": lambda: af.DataLoader(range(40), batch_size=3, shuffle=True, generator=seeded()),
    "one by one": lambda: af.DataLoader(range(40), batch_size=None),
    "resumable": lambda: af.DataLoader(range(40), batch_size=3, sampler=Resumable()),
    "stream": lambda: af.DataLoader(Stream(), batch_size=3),
    "counted": lambda: af.DataLoader(Counted(), batch_size=3),
}
OF_USERS = ("sampler_state", "dataset_state", "share_states")


def batches_of(loader: Any) -> list[list[int]]:
    return [torch.as_tensor(batch).reshape(-1).tolist() for batch in loader]


@functools.cache
def saved_loader(name: str, steps: int) -> str:
    torch.manual_seed(3)
    loader = LOADERS[name]()
    taken = list(itertools.islice(loader, steps))
    assert len(taken) == steps
    return json.dumps(loader.state_dict())


@functools.cache
def whole_epoch(name: str) -> list[list[int]]:
    torch.manual_seed(3)
    return batches_of(LOADERS[name]())


def check_loader(seed: int) -> bool:
    """Change one state; return whether it was accepted."""
    rng = random.Random(seed)  # noqa: S311
    name, steps = rng.choice(sorted(LOADERS)), rng.choice([0, 1, 5])
    honest = json.loads(saved_loader(name, steps))
    state, path = mutated(honest, rng)
    is_user_state = any(key in OF_USERS for key in path[:1])
    loader = LOADERS[name]()
    if not loads(loader, state, strict=rng.random() < 0.7):
        return False
    try:
        found = batches_of(loader)
    except af.StateMismatch:
        return False
    except af.UserCodeError:
        assert is_user_state
        return False
    if is_user_state or not state:
        return True
    flat = list(itertools.chain(*found))
    assert sorted(set(flat)) == sorted(flat), "a sample came twice"
    assert set(flat) <= set(range(40))
    step = state["step"] if "shares" not in state else sum(share[0] for share in state["shares"])
    assert (
        found or state.get("sampler_at_end") or step >= len(whole_epoch(name)) or state.get("shares", [[0, 0, 0]])[0][2]
    )
    places = {"shares", "share_stands", "step", "until", "loader", "sampler_at_end"}
    if steps and name != "shuffled" and places.isdisjoint(path[:1]) and "until" not in state:
        assert found == whole_epoch(name)[steps:]
    return True


def test_a_changed_state_of_a_dataloader_is_refused_or_gives_the_planned_rest() -> None:
    """Of a map-style dataset, of a sampler with a state, of an iterable dataset with one and without."""
    before_kb = grown_kb()
    accepted = [check_loader(seed) for seed in range(400)]

    assert 10 < sum(accepted) < 300
    assert grown_kb() - before_kb < MAX_GROWTH_KB


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 21_000, 2000))
def test_thousands_of_changed_states_of_a_dataloader(first: int) -> None:
    """The same, for long."""
    before_kb = grown_kb()
    for seed in range(first, first + 2000):
        check_loader(seed)
    assert grown_kb() - before_kb < MAX_GROWTH_KB


RANDOM = "state['random']"


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("sequential", {"until": 10**10, "missing": [[5, 10**9]]}, "['missing'][0][1]: expected an integer from 1 to"),
        ("sequential", {"until": 10**6, "missing": [[9, 60000], [70000, 60000]]}, "at most 65536 steps, got 120000"),
        ("sequential", {"until": 9, "missing": [[8, 1], [6, 1]]}, "['missing'][1]: expected steps from 9 to 9"),
        ("sequential", {"until": 2}, "state['until']: expected an integer >= 5, got 2"),
        ("sequential", {"missing": deep(), "until": 9}, "state['missing'][0]: expected a list of 2 entries"),
        ("sequential", {"step": 10**18}, "state['step']: expected an integer from 0 to"),
        ("sequential", {"step": 15}, "state['step']: expected an integer from 0 to 14, got 15"),
        ("sequential", {"step": "5"}, "state['step']: expected an integer from 0 to 281474976710656, got '5'"),
        ("sequential", {"calls": 10**9}, "state['calls']: expected an integer from 0 to"),
        ("sequential", {"indices": 1 << 40}, "state['indices']"),
        ("sequential", {"random": {"seed": None, "resets": 0, "persistent": False}}, "an entry 'began'"),
        ("sequential", {"random": deep()}, f"{RANDOM}: expected a dict, got a list"),
        ("sequential", {"loader": {"dataset": "map", "batch_size": 10**5000}}, "an integer of 16610 bits"),
        ("sequential", {"loader": CYCLE}, "state['loader']: expected a dict"),
        ("sequential", {"dataset_state": deep()}, "cannot be copied (RecursionError)"),
        ("sequential", {"dataset_state": (n for n in [])}, "cannot be copied (TypeError)"),
        ("stream", {"shares": [[5, 0, 0]] * 99}, "expected one entry for each of 1 workers"),
        ("stream", {"shares": [[5, 0]]}, "state['shares'][0]: expected a list of 3 entries"),
        ("stream", {"shares": [[5, 0, 2]]}, "state['shares'][0][2]: expected an integer from 0 to 1, got 2"),
        ("counted", {"share_states": [None]}, "expected a state for each entry"),
        ("counted", {"share_stands": [[99, 0]]}, "expected an integer from 0 to 5, got 99"),
        ("counted", {"share_states": [{"other": 1}]}, "expected one of sampler, iterator, dataset, got 'other'"),
    ],
)
def test_what_a_state_of_a_dataloader_cannot_say_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    """What was expected and what was got, when the state is loaded."""
    state = json.loads(saved_loader(name, 5)) | changes
    loader = LOADERS[name]()
    with pytest.raises(af.StateMismatch) as caught:
        loader.load_state_dict(state)
    assert words in caught.value.message
    assert len(str(caught.value)) < MAX_MESSAGE_CHARS


@pytest.mark.parametrize(
    "text",
    [
        "seed 99999999999999999999999",
        "seed x",
        "seed ²",
        "seed ",
        "seed " + "9" * 5000,
        "AAAA",
        "",
        "é",
        "=" * 99,
        LONG_TEXT,
    ],
)
@pytest.mark.parametrize("name", ["generator", "torch", "random", "numpy"])
def test_a_damaged_generator_is_refused(name: str, text: str) -> None:
    """Whatever its text is: not a seed, not base64, not compressed, too short, too long."""
    state = json.loads(saved_loader("shuffled", 5))
    state["random"]["now"] = {name: text}
    with pytest.raises(af.StateMismatch, match=r"state\['random'\]"):
        LOADERS["shuffled"]().load_state_dict(state)


def test_what_a_dataset_refuses_is_a_state_that_does_not_fit() -> None:
    """Its own error is the cause."""
    state = json.loads(saved_loader("resumable", 5))
    state["sampler_state"]["sampler"] = {"at": "x"}
    loader = LOADERS["resumable"]()
    loader.load_state_dict(state)
    with pytest.raises(af.StateMismatch, match="the sampler refused its part of the state: TypeError") as caught:
        next(iter(loader))
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_sampler_that_ended_early_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """The rest of the epoch is left out then, which nobody should have to find out."""
    state = json.loads(saved_loader("resumable", 5))
    loader = LOADERS["resumable"]()
    loader.load_state_dict(state | {"sampler_at_end": True})

    assert "the sampler has ended after 5 of 14 steps; the next epoch begins" in caplog.text
    assert list(loader)
