"""Small datasets whose every value follows from its row's number, and a check that no test leaves anything behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

# No test may depend on the machine being fast, nor find another error each time it runs. `make soak` looks further.
settings.register_profile("test", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("test"), derandomize=False, max_examples=5000, print_blob=True)
settings.load_profile("test")

LENGTH = 16
os.environ["ANTIFREEZE_FORKSERVER_LINGER_S"] = "60"  # tests share one fork server, which imports torch but once
_PATIENCE_S = 10.0
_SHARED = ("af-forkserver", "af-modules")  # processes that wait for the next loader and hold nothing of the last one
LONG_FILES = (
    "test_doctor_jobs.py",
    "test_worker_faults.py",
    "test_worker_endings.py",
    "test_examples.py",
    "test_lightning.py",
    "test_hf_trainer.py",
    "test_accelerate.py",
    "test_ranks_torchrun.py",
    "test_dataloader_patches.py",
    "test_dataloader_shards.py",
    "test_docs.py",
    "test_interrupts.py",
    "test_dataloader_batches.py",
    "test_endings.py",
    "test_dataloader_scripts.py",
    "test_dataloader_start.py",
    "test_dataloader_resume.py",
    "test_quiet_exits.py",
    "test_bombs.py",
)
"""These begin first, each in one process: otherwise, at the end, one core would wait for the last of them."""
_passed = pytest.StashKey[bool]()


def table_of(numbers: Iterable[int]) -> Any:
    """Return the rows with these numbers. Whoever sees a row's ``n`` knows all its other values."""
    n = np.fromiter(numbers, np.int64)
    ids = (n[:, None] * LENGTH + np.arange(LENGTH)).astype(np.int32)
    return pa.table(
        {
            "ids": pa.array(list(ids), pa.list_(pa.int32())),
            "label": n % 7,
            "score": (n * 0.5).astype(np.float32),
            "tag": [f"tag_{i}" for i in n],
            "n": n,
        }
    )


def more(*values: Any) -> list[Any]:
    """Return parameters that repeat what the others of a test show, with other values: `make test-more` runs them."""
    return [pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.more) for value in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A directory of Parquet files; the rows of the files in natural order are numbered from 0."""

    path: Path
    files: tuple[Path, ...]
    num_rows: int

    @staticmethod
    def check(batch: dict[str, Any]) -> list[int]:
        """Assert that each row of a batch holds what its number says, and return the numbers."""
        n = np.asarray(batch["n"])
        if "ids" in batch:
            assert np.array_equal(np.asarray(batch["ids"]), n[:, None] * LENGTH + np.arange(LENGTH))
            assert np.asarray(batch["ids"]).dtype == np.int32
        if "label" in batch:
            assert np.array_equal(np.asarray(batch["label"]), n % 7)
        if "score" in batch:
            assert np.array_equal(np.asarray(batch["score"]), (n * 0.5).astype(np.float32))
        if "tag" in batch:
            assert batch["tag"] == [f"tag_{i}" for i in n]
        return n.tolist()

    def check_all(self, batches: Iterable[dict[str, Any]]) -> list[int]:
        """Assert that the batches hold each row exactly once, and return the numbers in their order."""
        numbers = [i for batch in batches for i in self.check(batch)]
        assert sorted(numbers) == list(range(self.num_rows))
        return numbers


def write(path: Path, sizes: Iterable[int], group_rows: int = 23, names: Iterable[str] = (), **options: Any) -> Data:
    """Write one file for each size. Without names they are 1, 2, 10, 11, ..., which no plain sort puts in order."""
    path.mkdir(parents=True, exist_ok=True)
    sizes, chosen = list(sizes), list(names)
    chosen = chosen or [f"part-{i + 1 if i < 2 else i + 8}.parquet" for i in range(len(sizes))]
    files, first = [], 0
    for name, size in zip(chosen, sizes, strict=True):
        files.append(path / name)
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table_of(range(first, first + size)), files[-1], row_group_size=group_rows, **options)
        first += size
    return Data(path=path, files=tuple(files), num_rows=first)


@pytest.fixture
def write_data(tmp_path: Path) -> Callable[..., Data]:
    """Write a dataset of given file sizes below the test's own folder."""

    def make(*sizes: int, name: str = "data", **options: Any) -> Data:
        return write(tmp_path / name, sizes or (90, 103, 116), **options)

    return make


@pytest.fixture
def data(write_data: Callable[..., Data]) -> Data:
    """Three files with fourteen row groups and 309 rows, for this test alone."""
    return write_data()


@pytest.fixture(scope="session")
def shared_data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Write what ``data`` has, once for all tests that only read."""
    return write(tmp_path_factory.mktemp("shared") / "data", (90, 103, 116))


@pytest.fixture(scope="module")
def the_nursery_stays() -> Iterator[None]:
    """Keep one worker all the time: the process that workers are born from has then imported torch but once."""
    import torch

    import antifreeze as af

    loader = af.DataLoader([torch.zeros(1)] * 4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    yield
    del batches, loader


@pytest.fixture(scope="module")
def no_shared_fork_server() -> Iterator[None]:
    """Begin a module without a fork server, and let those that it starts end as soon as nobody uses them."""
    from antifreeze.pool import _tree

    for pid in _children_of("self"):
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().strip() == "af-forkserver":
                os.kill(int(pid), signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANTIFREEZE_FORKSERVER_LINGER_S", "0.1")
        patch.setattr(_tree, "_LINGER_S", 0.1)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    ranks = {name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(ranks)))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected to no garbage collection: each looked at a million objects of these."""
    gc.collect()
    gc.freeze()


# -- nothing is left behind ----------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note whether a test passed: the traceback of one that failed keeps its variables alive."""
    report = yield
    if call.when == "call":
        item.stash[_passed] = report.passed
    return report


def _threads() -> list[str]:
    """Return our threads, but for the supervisor: it stays as long as the fork server does."""
    ours = [t.name for t in threading.enumerate() if t.name.startswith("antifreeze") and t.is_alive()]
    return [name for name in ours if name != "antifreeze-supervisor"]


def _children(parent: str = "self") -> list[str]:
    """Return the processes whose parent is this one, those that nobody waited for included.

    Processes that are shared between tests are left out, and what was forked from them is not.
    """
    found = []
    for pid in _children_of(parent):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has just ended
            continue
        found += _children(pid) if name in _SHARED else [f"process {pid} ({name})"]
    return found


def _children_of(pid: str) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # the thread or the process has just ended
            found += (task / "children").read_text().split()
    return found


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the one that the listing itself held
            continue
        if ".parquet" in target:
            found.append(target)
    return found


def _shared_memory() -> list[str]:
    """Return named shared memory that can be ours: other programs on the machine have theirs in the same folder."""
    ours = ("antifreeze", "psm_", f"torch_{os.getpid()}_")
    folder = Path("/dev/shm")  # noqa: S108
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(ours)] if folder.exists() else []


def _left_behind() -> dict[str, list[str]]:
    return {
        "threads": _threads(),
        "child processes": _children(),
        "open files": _open_files(),
        "shared memory": _shared_memory(),
    }


def _more(before: dict[str, list[str]]) -> dict[str, list[str]]:
    return {kind: sorted(set(now) - set(before[kind])) for kind, now in _left_behind().items()}


@pytest.fixture
def our_threads() -> Callable[[], list[str]]:
    """Return the names of our threads that this test has started: one that failed before may have left some."""
    before = set(threading.enumerate())

    def names() -> list[str]:
        started = [t for t in threading.enumerate() if t.name.startswith("antifreeze") and t not in before]
        return [t.name for t in started if t.name != "antifreeze-supervisor"]  # it outlives its workers by a second

    return names


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, an open data file or shared memory behind."""
    before = _left_behind()
    yield
    if not request.node.stash.get(_passed, False) or not any(_more(before).values()):
        return
    end_s = time.monotonic() + _PATIENCE_S
    while any(_more(before).values()) and time.monotonic() < end_s:
        gc.collect()  # again and again: a thread may hold a part of what is garbage a moment later
        for thread in threading.enumerate():
            if thread.name.startswith("antifreeze") and thread.is_alive():  # one that has not begun cannot be joined
                thread.join(0.1)
        time.sleep(0.01)
    left = {kind: names for kind, names in _more(before).items() if names}
    assert not left, f"the test left behind: {left}"
