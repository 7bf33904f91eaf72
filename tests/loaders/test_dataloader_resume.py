"""Runs with workers go on from ``state_dict()``: with other workers, after a loss, after the trainer's death."""

# ruff: noqa: S311  nothing here is secret

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.utils.data as tud

import antifreeze as af

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

HERE = Path(__file__).parent
PATIENCE_S = 100
LENGTH = 40


def once(path: Path) -> bool:
    """Tell whether this is the first call with this path, of all processes."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Noisy(tud.Dataset[Any]):
    """Each sample says what it is, and which random numbers it was made with. One of them kills its worker, once."""

    def __init__(self, died: Path | None = None, at: int = 21) -> None:
        self.died, self.at = died, at

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        drawn = random.random(), float(torch.rand(()))
        if index == self.at and self.died is not None and once(self.died):
            os.kill(os.getpid(), signal.SIGKILL)
        return int(index), *drawn


class Stream(tud.IterableDataset[Any]):
    """The same in shares, the first of which is the longest."""

    def __init__(self, died: Path | None = None, *, wild: bool = False) -> None:
        self.died, self.wild = died, wild

    def indices(self) -> range:
        info = tud.get_worker_info()
        if info is None or info.num_workers == 1:
            return range(LENGTH)
        return range(0, LENGTH, 2) if info.id == 0 else range(2 * info.id - 1, LENGTH, 2 * (info.num_workers - 1))

    def __iter__(self) -> Iterator[Any]:
        salt = os.urandom(4).hex() if self.wild else ""
        for index in self.indices():
            if index == 21 and self.died is not None and once(self.died):
                os.kill(os.getpid(), signal.SIGKILL)
            yield index, random.random(), salt


class Resumable(Stream):
    """Has a state, and cannot be repeated without it."""

    next = 0
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        indices = self.indices()
        if self.next == 0:
            self.epoch += 1
        while self.next < len(indices):
            index = indices[self.next]
            if index == 21 and self.died is not None and once(self.died):
                os.kill(os.getpid(), signal.SIGKILL)
            self.next += 1
            yield index, self.epoch
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next, self.epoch = state["next"], state["epoch"]


def as_is(samples: Any) -> Any:
    return samples


def loader_of(dataset: Any = None, num_workers: int = 2, **options: Any) -> Any:
    if num_workers:
        options.setdefault("timeout", PATIENCE_S)
    options = {"batch_size": 3, "collate_fn": as_is} | options
    return af.DataLoader(Noisy() if dataset is None else dataset, num_workers=num_workers, **options)


def saved(loader: Any) -> dict[str, Any]:
    """Return the state as it comes out of a file."""
    text = json.dumps(loader.state_dict())
    assert len(text) < 8192
    state: dict[str, Any] = json.loads(text)
    return state


def resumed(state: dict[str, Any], *arguments: Any, strict: bool = True, **options: Any) -> Any:
    torch.rand(5)
    loader = loader_of(*arguments, **options)
    loader.load_state_dict(state, strict=strict)
    return loader


def epochs_of(loader: Any, number: int = 2) -> list[Any]:
    return [list(loader) for _ in range(number)]


def states_of(loader: Any, number: int = 2) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield after each batch of some epochs all batches so far, and the state.

    What is drawn by others meanwhile does not count: this run is the one that is not interrupted.
    """
    found: list[Any] = []
    for _ in range(number):
        for batch in loader:
            found.append(batch)
            before = torch.get_rng_state()
            yield list(found), saved(loader)
            torch.set_rng_state(before)


@pytest.fixture(scope="module", autouse=True)
def the_nursery_stays() -> Iterator[None]:
    """Keep one worker all the time: the process that workers are born from has then imported torch but once."""
    loader = loader_of(num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    yield
    del batches, loader


@pytest.fixture(autouse=True)
def a_known_beginning() -> Iterator[None]:
    """Seed the trainer, and put back what other tests had."""
    before = torch.get_rng_state()
    torch.manual_seed(7)
    yield
    torch.set_rng_state(before)


# -- map-style -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "persistent_workers": True}], ids=str)
def test_another_number_of_workers_goes_on(options: dict[str, Any]) -> None:
    """From what was delivered, however far workers were ahead."""
    stay = "persistent_workers" in options  # then later epochs have another order, as in torch
    expected = epochs_of(loader_of(**options) if stay else loader_of(num_workers=0, **options), 3)
    torch.manual_seed(7)
    loader = loader_of(**options)
    for number, (found, state) in enumerate(states_of(loader)):
        assert (state["epoch"], state["step"]) in (divmod(number + 1, 14), (number // 14, 14))
        if number in (0, 12, 13, 14, 20):
            for num_workers in (1, 3) if stay else (0, 3):
                rest = epochs_of(resumed(state, num_workers=num_workers, **options), 3)
                assert [*found, *itertools.chain(*rest)][: 3 * 14] == list(itertools.chain(*expected))


def test_a_worker_that_is_killed_around_the_save(tmp_path: Path) -> None:
    """Before or after it, and again after the resume: the same bytes."""
    expected = epochs_of(loader_of(num_workers=0, shuffle=True))
    for at in (2, 21, 39):
        torch.manual_seed(7)
        loader = loader_of(Noisy(tmp_path / f"{at}", at), shuffle=True)
        batches = iter(loader)
        found = list(itertools.islice(batches, 5))
        state = saved(loader)
        before = torch.get_rng_state()
        again = resumed(state, Noisy(tmp_path / f"{at} again", at), shuffle=True, num_workers=3)
        assert torch.equal(torch.get_rng_state(), before)
        assert [[*found, *again], list(again)] == expected
        assert [*found, *batches] == expected[0]
        del batches


def test_the_same_loader_goes_back_with_the_same_workers() -> None:
    """Workers that stay are told which batches are wanted now; what they had made ahead is not mixed in."""
    expected = epochs_of(loader_of(num_workers=0, shuffle=True))
    for dataset in (Noisy(), Stream()):
        torch.manual_seed(7)
        shuffle = True if isinstance(dataset, Noisy) else None
        loader = loader_of(dataset, shuffle=shuffle, persistent_workers=True)
        expected = epochs_of(loader)
        torch.manual_seed(7)
        loader = loader_of(dataset, shuffle=shuffle, persistent_workers=True)
        found = list(itertools.islice(loader, 4))
        state = saved(loader)
        for _ in range(3):
            loader.load_state_dict(state)
            assert [[*found, *itertools.islice(loader, 2)]] == [expected[0][:6]]
        loader.load_state_dict(state)
        assert [[*found, *loader], list(loader)] == expected


def test_a_dataset_with_a_state_reaches_workers_that_stay() -> None:
    """What they were born with is not what was loaded."""

    class Told(Noisy):
        said = "nothing"

        def __getitem__(self, index: int) -> Any:
            return index, self.said

        def state_dict(self) -> Any:
            return {"said": self.said}

        def load_state_dict(self, state: Any) -> None:
            self.said = state["said"]

    loader = loader_of(Told(), persistent_workers=True)
    (first,) = itertools.islice(loader, 1)
    state = saved(loader)
    assert (first[0], state["dataset_state"]) == ((0, "nothing"), {"said": "nothing"})
    state["dataset_state"]["said"] = "something"
    loader.load_state_dict(state)
    assert next(iter(loader))[0] == (3, "something")


class Gate:
    """Batches wait for a file that the test writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        event = threading.Event()
        while index == 3 and not self.path.exists():
            event.wait(0.02)
        return index


def test_batches_out_of_order_are_counted_one_by_one(tmp_path: Path) -> None:
    """Those that were overtaken come after the resume, in order or not; none comes twice."""
    loader = loader_of(Gate(tmp_path / "open"), in_order=False, prefetch_factor=2)
    batches = iter(loader)
    found = list(itertools.islice(batches, 5))
    state = saved(loader)
    (tmp_path / "open").touch()
    assert [3, 4, 5] not in found
    # The one that is held back, and batches before it whose worker has begun late.
    over = {batch[0] // 3 for batch in found}
    missing = [step for step in range(max(over)) if step not in over]
    assert (state["step"], state["missing"][0][0]) == (missing[0], missing[0])
    for in_order in (True, False):
        for num_workers in (0, 2):
            rest = list(resumed(state, Gate(tmp_path / "open"), num_workers=num_workers, in_order=in_order))
            assert sorted([*found, *rest]) == [list(range(i, min(i + 3, LENGTH))) for i in range(0, LENGTH, 3)]
            if in_order:
                assert rest == sorted(rest)
    again = resumed(state, Gate(tmp_path / "open"))
    (first,) = itertools.islice(again, 1)
    assert first[0] // 3 == missing[0]
    assert first not in list(resumed(saved(again), Gate(tmp_path / "open")))
    assert sorted([*found, *batches]) == sorted([*found, first, *resumed(saved(again), Gate(tmp_path / "open"))])
    del batches


def test_samples_that_are_left_out_do_not_move_the_place() -> None:
    """Positions count steps, also those of which nothing is left."""

    class Failing(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index in (3, 4, 5, 7, 39):
                raise ValueError("not this one")
            return super().__getitem__(index)

    expected = epochs_of(loader_of(Failing(), num_workers=0, on_error="skip"))
    assert [len(epoch) for epoch in expected] == [12, 12]
    torch.manual_seed(7)
    for number, (found, state) in enumerate(states_of(loader_of(Failing(), on_error="skip"))):
        if number in (0, 1, 11, 13):
            rest = epochs_of(resumed(state, Failing(), on_error="skip", num_workers=3))
            assert [*found, *itertools.chain(*rest)][:24] == list(itertools.chain(*expected))


# -- iterable ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [3, pytest.param(1, marks=pytest.mark.more)])
@pytest.mark.parametrize("batch_size", [3, 4, None])
@pytest.mark.parametrize("make", [Stream, Resumable])
def test_shares_go_on(make: Callable[..., Any], batch_size: int | None, num_workers: int, tmp_path: Path) -> None:
    """Each from its own place, also when its worker is killed before or after the save."""
    options: dict[str, Any] = {"batch_size": batch_size, "num_workers": num_workers}
    expected = epochs_of(loader_of(make(), **options))
    size = len(expected[0])
    torch.manual_seed(7)
    for number, (found, state) in enumerate(states_of(loader_of(make(tmp_path / "died"), **options)), 1):
        if number in (1, size // 2, size - 1, size, size + 1):
            again = resumed(state, make(tmp_path / f"died again {number}"), **options)
            rest = epochs_of(again)
            assert [*found, *itertools.chain(*rest)][: 2 * size] == list(itertools.chain(*expected))
    assert (tmp_path / "died").exists()


def test_shares_that_stay_with_their_workers_keep_their_epochs() -> None:
    """A dataset that counts its epochs goes on counting, if its workers stay from epoch to epoch."""
    options: dict[str, Any] = {"persistent_workers": True, "num_workers": 2}
    expected = epochs_of(loader_of(Resumable(), **options), 3)
    assert {sample[1] for batch in expected[2] for sample in batch} == {3}
    torch.manual_seed(7)
    loader = loader_of(Resumable(), **options)
    for _ in range(2):
        list(loader)
    before = torch.get_rng_state()
    assert list(resumed(saved(loader), Resumable(), **options)) == expected[2]
    torch.set_rng_state(before)
    found = list(itertools.islice(loader, 5))
    assert [*found, *resumed(saved(loader), Resumable(), **options)] == expected[2]


def test_one_share_goes_on_with_a_worker_or_without() -> None:
    """Its place is the same; without workers there is no fingerprint, so the next one does not look for it."""
    expected = epochs_of(loader_of(Stream(), num_workers=0))
    for first, second, third in itertools.product((0, 1), repeat=3):
        torch.manual_seed(7)
        loader = loader_of(Stream(), num_workers=first)
        found = list(itertools.islice(loader, 4))
        again = resumed(saved(loader), Stream(), num_workers=second)
        found += itertools.islice(again, 3)
        again = resumed(saved(again), Stream(), num_workers=third)
        assert [[*found, *again], list(again)] == expected


def test_another_number_of_shares_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """They would be other shares. At the end of an epoch it does not matter."""
    loader = loader_of(Stream(), num_workers=3)
    batches = iter(loader)
    next(batches)
    state = saved(loader)
    with pytest.raises(af.StateMismatch, match="saved with num_workers=3, this loader has 2") as caught:
        resumed(state, Stream())
    assert "starts the epoch over" in caught.value.hint
    again = resumed(state, Stream(), strict=False)
    assert "its first 1 batches come again" in caplog.text
    assert sorted(sample[0] for batch in again for sample in batch) == list(range(LENGTH))
    list(batches)
    again = resumed(saved(loader), Stream())
    assert sorted(sample[0] for batch in again for sample in batch) == list(range(LENGTH))


def test_shares_that_are_not_the_same_again_are_refused() -> None:
    """The dataset is another one, or it is not deterministic; going on would lose samples, or repeat them."""
    loader = loader_of(Stream(wild=True))
    batches = iter(loader)
    list(itertools.islice(batches, 3))
    state = saved(loader)
    again = resumed(state, Stream(wild=True))
    with pytest.raises(af.StateMismatch, match=r"does not fit this dataset: the first [12] batches of shard [01]"):
        list(again)
    again = resumed(state, Stream(wild=True), strict=False)
    assert len([sample for batch in again for sample in batch]) == LENGTH - 9
    del batches
    loader = loader_of(Stream(wild=True), num_workers=1)
    (_,) = itertools.islice(loader, 1)
    with pytest.raises(af.StateMismatch, match="does not fit this dataset: the first 1 batches of shard 0"):
        next(iter(resumed(saved(loader), Stream(wild=True), num_workers=0)))


def test_a_share_that_has_failed_is_tried_again() -> None:
    """The batch that raised was not delivered, so the state is from before it."""

    class Failing(Stream):
        def __iter__(self) -> Iterator[Any]:
            for sample in super().__iter__():
                if sample[0] == 21:
                    raise ValueError("twenty-one")
                yield sample

    loader = loader_of(Failing())
    batches = iter(loader)
    with pytest.raises(ValueError, match="twenty-one"):
        list(batches)
    again = resumed(saved(loader), Failing())
    with pytest.raises(ValueError, match="twenty-one"):
        list(again)
    # Whoever goes on after the error has the other share; its place is after the error, too.
    next(batches)
    again = resumed(saved(loader), Failing())
    assert list(again) == list(batches)


# -- ranks ---------------------------------------------------------------------------------------------------------

RANKS = """
import itertools, json, sys
import torch.distributed as dist
sys.path.insert(0, {here!r})
from beside_torch import Streamed
from test_dataloader_resume import loader_of, resumed, saved

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

def epoch_of(loader):
    dist.barrier()  # as a training step would
    return list(loader)

for num_workers in (0, 2):
    make = lambda: Streamed(20 - 12 * rank)
    expected = [epoch_of(loader) for loader in [loader_of(make(), num_workers, batch_size=2)] * 3]
    assert [len(epoch) for epoch in expected] == [10] * 3
    for number in (2, 4, 7, 10):
        loader = loader_of(make(), num_workers, batch_size=2)
        batches = iter(loader)
        found = list(itertools.islice(batches, number))
        state = saved(loader)
        del batches
        again = resumed(state, make(), num_workers, batch_size=2)
        rest = [epoch_of(again) for _ in range(2)]
        assert [*found, *itertools.chain(*rest)][:20] == list(itertools.chain(*expected))[:20], (number, found, rest)
        assert len(rest[1]) == 10
other = [None, None]
dist.all_gather_object(other, state)
try:
    resumed(other[1 - rank], make(), num_workers, batch_size=2)
except ValueError as error:
    assert f"rank={{1 - rank}}, this loader has {{rank}}" in str(error)
    print("done")
dist.barrier()
"""


def test_uneven_ranks_go_on_together(tmp_path: Path) -> None:
    """Also one that repeats its data because the other one has more; and none goes on from another one's state."""
    script = tmp_path / "rank.py"
    script.write_text(RANKS.format(here=str(HERE)))
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path / "store"], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        found = [rank.communicate(timeout=PATIENCE_S)[0].strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(PATIENCE_S)

    assert found == ["done"] * 2


# -- the trainer dies ----------------------------------------------------------------------------------------------

TRAINER = """
import json, os, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, {here!r})
from test_dataloader_resume import Noisy, Resumable, Stream, loader_of

folder, kind, num_workers, num_epochs, dies_after = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
state_file, log = folder / "state.json", folder / "log"
torch.manual_seed(7)
dataset = {{"map": Noisy, "iterable": Stream, "resumable": Resumable}}[kind]()
loader = loader_of(dataset, num_workers, shuffle=True if kind == "map" else None)
lines = []
if state_file.exists():
    torch.manual_seed(dies_after)
    saved = json.loads(state_file.read_text())
    loader.load_state_dict(saved["loader"])
    lines = log.read_text().splitlines()[: saved["count"]]
log.write_text("".join(line + "\\n" for line in lines))
epoch, count = (saved["epoch"] if lines else 0), len(lines)
delivered = 0
for epoch in range(epoch, num_epochs):
    for batch in loader:
        with log.open("a") as file:
            file.write(json.dumps(batch) + "\\n")
        count += 1
        delivered += 1
        if delivered == dies_after and dies_after % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        # The last batch of an epoch, too: its state begins the next one, so the loop counts on.
        is_last = count == (epoch + 1) * int(sys.argv[6])
        state = {{"loader": loader.state_dict(), "count": count, "epoch": epoch + is_last}}
        Path(f"{{state_file}}.new").write_text(json.dumps(state))
        os.replace(f"{{state_file}}.new", state_file)
        if delivered == dies_after:
            os.kill(os.getpid(), signal.SIGKILL)
print("done")
"""


@pytest.mark.parametrize("kind", ["map", "iterable", "resumable"])
def test_a_run_whose_trainer_is_killed_again_and_again(kind: str, tmp_path: Path) -> None:
    """Each time it goes on from its last state in a new process; all batches together are those of one run."""
    assert kill_and_go_on(kind, tmp_path, random.Random(kind), 16) > 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["map", "iterable", "resumable"])
def test_many_runs_whose_trainer_is_killed_again_and_again(kind: str, seed: int, tmp_path: Path) -> None:
    """More than two hundred deaths, all told."""
    assert kill_and_go_on(kind, tmp_path, random.Random(f"{kind} {seed}"), 8) > 2


def kill_and_go_on(kind: str, folder: Path, draw: random.Random, most: int) -> int:
    """Check a run that is killed after a few batches at most, and return how often it was."""
    dataset = {"map": Noisy, "iterable": Stream, "resumable": Resumable}[kind]()
    expected = epochs_of(loader_of(dataset, 2, shuffle=True if kind == "map" else None))
    script = folder / "trainer.py"
    script.write_text(TRAINER.format(here=str(HERE)))
    for deaths in range(100):
        num_workers = draw.choice([0, 1, 2, 3]) if kind == "map" else 2
        arguments = [kind, num_workers, 2, draw.randint(2, most), len(expected[0])]
        done = subprocess.run(
            [sys.executable, script, folder, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.stdout.strip() == "done":
            found = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
            assert found == json.loads(json.dumps(list(itertools.chain(*expected))))
            return deaths
        assert done.returncode == -signal.SIGKILL, done.stderr
    raise AssertionError("the run does not get on")
