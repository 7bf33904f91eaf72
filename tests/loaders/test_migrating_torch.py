"""Each row of the table of differences from torch in ``docs/migrating.md`` has a test here, named by the row."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.utils.data as tud
from beside_torch import PATIENCE_S, Made, once, ours, seeded

import antifreeze as af
from antifreeze.loaders._pad_ranks import PaddedRanks

# Workers get the classes of this module by value, so they import neither it nor pytest.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.usefixtures("the_nursery_stays")

DOCS = Path(__file__).parents[2] / "docs/migrating.md"
HEADING = "### What is different, on purpose"
ROWS: dict[str, Callable[..., None]] = {}
"""The test of each row, by the row's title."""
ELSEWHERE: dict[str, str] = {
    "functions of libraries replaced in the trainer: `json.dumps = mine`, `monkeypatch`, `unittest.mock.patch`": (
        "test_dataloader_patches.py::test_what_is_replaced_in_the_trainer_is_replaced_in_workers"
    ),
    "random numbers in the dataset with `num_workers=0`": (
        "test_dataloader_random.py::test_what_user_code_draws_does_not_advance_the_trainers_generators"
    ),
    "files, `h5py`, `lmdb` and `sqlite3` handles opened in `__init__`": (
        "test_dataloader_handles.py::test_handles_opened_in_the_constructor_are_there_in_workers"
    ),
    "seeding in `worker_init_fn`": "test_dataloader_random.py::test_seeding_in_worker_init_fn_has_no_effect",
    "a list of 50,000 or more plain items in the dataset": (
        "test_dataloader_start.py::test_a_large_list_is_stored_once_for_all_workers"
    ),
}
"""Rows whose test is in another module, with its name."""


def row(title: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test for the row with this title."""

    def register(test: Callable[..., None]) -> Callable[..., None]:
        assert title not in ROWS
        ROWS[title] = test
        return test

    return register


def titles_of(text: str) -> list[str]:
    """Return the first column of the table below the heading, without its header and its headlines."""
    table = text.split(HEADING)[1].split("\n\n")[1]
    cells = [re.split(r"(?<!\\)\|", line)[1].strip() for line in table.splitlines() if line.startswith("|")]
    return [cell for cell in cells[2:] if not cell.startswith("**")]


def test_every_row_of_the_table_has_a_test() -> None:
    """A new row needs a new test."""
    titles = titles_of(DOCS.read_text())
    assert len(titles) == len(set(titles))
    assert sorted(titles) == sorted([*ROWS, *ELSEWHERE])


def test_the_tests_that_are_elsewhere_are_there() -> None:
    """A name that nothing has would hide a row."""
    for name in ELSEWHERE.values():
        module, test = name.split("::")
        assert f"def {test}(" in (Path(__file__).parent / module).read_text()


def test_the_rule_about_rows_can_fail() -> None:
    """A check that cannot fail checks nothing."""
    rows = ["| | torch | antifreeze |", "|---|---|---|", "| **Start** | | |", "| a `\\|` b | x | y |", "| new | | |"]
    table = "\n".join(rows)
    assert titles_of(f"{HEADING}\n\n{table}\n\nmore") == ["a `\\|` b", "new"]


def in_a_worker(function: Callable[[], Any], **options: Any) -> Any:
    """Return what a function returns in a worker."""
    (batch,) = ours(Made(1, lambda _: function()), 1, batch_size=None, collate_fn=lambda found: found, **options)
    return batch


def blocks_for_ever() -> None:
    while True:
        threading.Event().wait(0.1)


# -- start ---------------------------------------------------------------------------------------------------------


@row("start method")
def test_start_method() -> None:
    for context in ("fork", "spawn", multiprocessing.get_context("forkserver")):
        parent = in_a_worker(os.getppid, multiprocessing_context=context)
        assert parent != os.getpid()


@row(
    "settings made in the trainer: variables of your modules, constants of libraries, loggers, `torch.no_grad`, "
    "default dtype, deterministic algorithms"
)
def test_settings_made_in_the_trainer() -> None:
    logger = logging.getLogger("test of a setting")
    logger.setLevel(37)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.no_grad():
            found = in_a_worker(
                lambda: (
                    str(torch.get_default_dtype()),
                    torch.is_grad_enabled(),
                    torch.get_deterministic_debug_mode(),
                    logging.getLogger("test of a setting").level,
                )
            )
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        logger.setLevel(logging.NOTSET)
    assert found == ("torch.float64", False, 1, 37)
    assert in_a_worker(torch.is_grad_enabled)


@row("other settings: `cv2.setNumThreads`, `numpy.seterr`")
def test_other_settings() -> None:
    with np.errstate(over="raise"):
        assert in_a_worker(np.geterr)["over"] == "warn"
        assert in_a_worker(np.geterr, worker_init_fn=lambda _: np.seterr(over="raise"))["over"] == "raise"


SCRIPT = """
import multiprocessing
import antifreeze as af

class Twice:
    def __init__(self):
        self.event = multiprocessing.get_context("spawn").Event()
    def __len__(self):
        return 4
    def __getitem__(self, i):
        self.event.set()
        return 2 * i

dataset = Twice()
print(list(af.DataLoader(dataset, num_workers=1, batch_size=4, collate_fn=lambda samples: sum(samples))))
print(dataset.event.is_set())
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Return what a script prints that has no main guard, a lambda, and an event that all processes share."""
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout.splitlines()


@row("no main guard, lambdas, classes of a notebook")
def test_main_guard(printed: list[str]) -> None:
    assert printed[0] == "[12]"


@row("when workers start")
def test_when_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> Any:
        raise ZeroDivisionError("a worker is started")

    monkeypatch.setattr(af.DataLoader, "_make_pool", refuse)
    batches = iter(ours(Made(4, int), 1))
    with pytest.raises(ZeroDivisionError, match="a worker is started"):
        next(batches)


@row("threads of NumPy in a worker")
def test_threads_of_numpy_in_a_worker() -> None:
    def threads() -> tuple[int, int]:
        before = len(list(Path("/proc/self/task").iterdir()))
        _ = np.ones((600, 600)) @ np.ones((600, 600))
        return len(list(Path("/proc/self/task").iterdir())) - before, torch.get_num_threads()

    assert in_a_worker(threads) == (0, 1)


@row("`PYTHONHASHSEED` in a worker")
def test_pythonhashseed_in_a_worker() -> None:
    seed = os.environ.get("PYTHONHASHSEED", "")
    code = [sys.executable, "-c", "print(hash('antifreeze'))"]
    environ = {**os.environ, "PYTHONHASHSEED": seed if seed.isdigit() else "0"}
    done = subprocess.run(code, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert in_a_worker(lambda: hash("antifreeze")) == int(done.stdout)


@row("more workers than cores")
def test_more_workers_than_cores() -> None:
    with pytest.warns(UserWarning, match="worker processes"):
        tud.DataLoader([0], num_workers=10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        af.DataLoader([0], num_workers=10_000)


# -- order and random numbers --------------------------------------------------------------------------------------


def noise(_: int) -> tuple[float, float]:
    return float(torch.rand(())), float(np.random.rand())


@row("random numbers in the dataset")
def test_random_numbers_in_the_dataset() -> None:
    found = [
        list(ours(Made(12, noise), num_workers, batch_size=3, generator=seeded(), collate_fn=tuple))
        for num_workers in (0, 1, 2)
    ]
    assert found[0] == found[1] == found[2]


@row("`get_worker_info().seed`")
def test_get_worker_info_seed() -> None:
    def seeds(_: int) -> Any:
        info: Any = tud.get_worker_info()
        return info.id, info.seed, torch.initial_seed()

    found = {
        num_workers: list(ours(Made(8, seeds), num_workers, batch_size=None, generator=seeded()))
        for num_workers in (1, 2)
    }
    assert len({seed - worker for worker, seed, _ in found[1] + found[2]}) == 1
    assert [of_batch for *_, of_batch in found[1]] == [of_batch for *_, of_batch in found[2]]
    assert len({of_batch for *_, of_batch in found[1]}) == 8


class Counted:
    """A sampler that knows how many indices it has given."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __iter__(self) -> Iterator[int]:
        for index in range(self.length):
            self.given = index + 1
            yield index

    def __len__(self) -> int:
        return self.length


@row("tiny batches")
def test_tiny_batches(tmp_path: Path) -> None:
    for prefetch_factor in (None, 2):
        sampler = Counted(3000)
        loader = ours(Made(3000, int), 1, batch_size=None, sampler=sampler, prefetch_factor=prefetch_factor)
        assert max(sampler.given - number for number, _ in enumerate(loader, 1)) <= 2
    made = tmp_path / "made"
    made.touch()

    def note(index: int) -> int:
        with made.open("a") as file:
            file.write("x")
        return index

    batches = iter(ours(Made(3000, note), 1, batch_size=None))
    for _ in range(100):
        next(batches)
    end_s = time.monotonic() + 60
    while made.stat().st_size <= 100 + 2:
        assert time.monotonic() < end_s, "no more is made ahead than two batches"
        time.sleep(0.005)


@row("a state taken at the last batch of an epoch")
def test_a_state_taken_at_the_last_batch_of_an_epoch() -> None:
    loaders = [ours(Made(8, int), 1, batch_size=4, shuffle=True, generator=seeded()) for _ in range(2)]
    for _, batch in zip(range(2), loaders[0], strict=False):
        state = loaders[0].state_dict() if batch is not None else {}
    following = [batch.tolist() for batch in loaders[0]]
    loaders[1].load_state_dict(state)
    assert [batch.tolist() for batch in loaders[1]] == following


@row("which worker makes a batch")
def test_which_worker_makes_a_batch(tmp_path: Path) -> None:
    def who(index: int) -> Any:
        worker: Any = tud.get_worker_info()
        if once(tmp_path / f"first of {worker.id}") and once(tmp_path / "waits"):
            while not (tmp_path / "11").exists():
                threading.Event().wait(0.02)
        (tmp_path / f"{index}").touch()
        return index, worker.id

    found = sorted(ours(Made(16, who), 2, batch_size=None, in_order=False, prefetch_factor=1))
    assert [index for index, _ in found] == list(range(16))
    assert any(one[1] == other[1] for one, other in itertools.pairwise(found))


# -- errors --------------------------------------------------------------------------------------------------------


@row("an exception in the dataset")
def test_an_exception_in_the_dataset() -> None:
    def fail(index: int) -> int:
        if index == 5:
            raise KeyError("five")
        return index

    with pytest.raises(KeyError) as caught:
        list(ours(Made(8, fail), 1, batch_size=2))
    assert isinstance(caught.value, af.UserCodeError)
    assert re.search(r"worker 0 .*batch 2, sample 5 of Made", str(caught.value))
    for num_workers in (0, 1):
        with pytest.raises(af.UserCodeError, match="StopIteration"):
            list(ours(Made(4, lambda _: next(iter(()))), num_workers))


@row("a batch that cannot be pickled")
def test_a_batch_that_cannot_be_pickled() -> None:
    with pytest.raises(af.NotPicklable):
        list(ours(Made(2, lambda _: threading.current_thread()), 1, batch_size=None))


@row("a worker that exits or is killed")
def test_a_worker_that_dies(tmp_path: Path) -> None:
    def make(index: int, always: bool = False) -> int:
        if index == 5 and (always or once(tmp_path / "died")):
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    assert [batch.tolist() for batch in ours(Made(8, make), 2, batch_size=4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(af.WorkerDied, match="sample 5") as caught:
        list(ours(Made(8, lambda index: make(index, True)), 1, batch_size=4))
    assert isinstance(caught.value, RuntimeError)


@row("a worker that hangs")
def test_a_worker_that_hangs(tmp_path: Path) -> None:
    def make(index: int, always: bool = False) -> int:
        if index == 5 and (always or once(tmp_path / "hung")):
            blocks_for_ever()
        return index

    loader = ours(Made(8, make), 2, batch_size=4, stall_limit=0.5)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(af.Stalled, match="sample 5"):
        list(ours(Made(8, lambda index: make(index, True)), 1, batch_size=4, stall_limit=0.5))


@row("`timeout=`")
def test_timeout() -> None:
    with pytest.raises(af.Stalled) as caught:
        list(ours(Made(2, lambda _: blocks_for_ever()), 1, timeout=1))
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, TimeoutError)


# -- data ----------------------------------------------------------------------------------------------------------


class Whole(tud.IterableDataset[int]):
    """Yields everything in each worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@row("an iterable dataset that gives every worker the same samples")
def test_an_iterable_dataset_that_gives_every_worker_the_same_samples() -> None:
    with pytest.raises(af.DuplicateData):
        list(ours(Whole(), 2))


class Store:
    """A store of one process, with what another rank has said."""

    def __init__(self, said: dict[str, bytes]) -> None:
        self.said = said

    def set(self, key: str, value: str) -> None:
        self.said[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.said[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.said for key in keys)


@row("an iterable dataset, on ranks of different lengths")
def test_an_iterable_dataset_on_ranks_of_different_lengths() -> None:
    store = Store({"key/1": b"ended 5"})
    c10d = SimpleNamespace(_get_default_store=lambda: store)
    job = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 2, distributed_c10d=c10d)
    assert list(PaddedRanks(iter("abc"), lambda: iter("abc"), "key", job)) == list("abcab")
    assert [af.DataLoader(Whole(), uneven_ranks=how)._padding_key is None for how in ("pad", "ignore")] == [False, True]


@row("two iterators of a loader with `persistent_workers=True`")
def test_two_iterators_of_a_loader_with_persistent_workers() -> None:
    loader = ours(Made(6, int), 1, batch_size=None, persistent_workers=True)
    assert list(zip(loader, loader, strict=True)) == [(i, i) for i in range(6)]


class Locked:
    """Holds a lock while it makes a sample, and is killed with it, once."""

    def __init__(self, lock: Any, died: Path) -> None:
        self.lock, self.died = lock, died

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with self.lock:
            if index == 5 and once(self.died):
                os.kill(os.getpid(), signal.SIGKILL)
            return index


@row("`multiprocessing.Lock` in the dataset")
def test_multiprocessing_lock_in_the_dataset(tmp_path: Path) -> None:
    lock = multiprocessing.Lock()
    with lock:  # the trainer's does not exclude the workers
        assert len(list(ours(Locked(lock, tmp_path / "died"), 2))) == 8
    assert (tmp_path / "died").exists()


@row("`multiprocessing` semaphores, events, queues in the dataset")
def test_multiprocessing_semaphores_events_queues_in_the_dataset(printed: list[str]) -> None:
    for kind in ("Semaphore", "Event", "Queue"):
        held: Any = getattr(multiprocessing.get_context("fork"), kind)()
        with pytest.raises(af.NotPicklable):
            list(ours([held], 1))
    assert printed[1] == "True"


@row("tensors of different dtypes in `default_collate`")
def test_tensors_of_different_dtypes_in_default_collate() -> None:
    def make(index: int) -> torch.Tensor:
        return torch.tensor(index, dtype=torch.int64 if index == 0 else torch.float32)

    (expected,) = tud.DataLoader(Made(3, make), batch_size=3)
    for num_workers in (0, 1):
        (found,) = ours(Made(3, make), num_workers, batch_size=3)
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist()) == (torch.float32, [0.0, 1.0, 2.0])


@row("`pin_memory`")
def test_pin_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def pin(batch: Any) -> Any:
        threads.append(threading.get_ident())
        return batch

    monkeypatch.setattr("antifreeze.loaders._torch_epoch.pin", pin)
    assert len(list(ours(Made(3, int), 1, pin_memory=True))) == 3
    assert threads == [threading.get_ident()] * 3
