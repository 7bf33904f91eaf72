"""How workers start: one process imports and loads for all of them, and workers are forked from it, in every epoch."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import antifreeze as af

pytestmark = pytest.mark.usefixtures("the_nursery_stays")

LARGE = 60_000


class Where:
    """Gives, for each sample, the worker, the process that it was forked from, and one more."""

    def __init__(self, log: Path | None = None) -> None:
        self.log, self.epoch = log, 0
        self.large = [(f"sample {i}", i) for i in range(LARGE)]
        self.array = np.arange(5000)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int, int, int, int]:
        return os.getpid(), os.getppid(), self.epoch, self.large[index][1], int(self.array[index])

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.log is not None:
            with self.log.open("a") as file:
                file.write("loaded\n")
        self.loaded()

    def loaded(self) -> None:
        """Do what this kind of dataset does when it is loaded."""


class Threaded(Where):
    """Starts a thread that never ends when it is loaded."""

    def loaded(self) -> None:
        threading.Thread(target=threading.Event().wait, name="reader_of_tests", daemon=True).start()


class Opened(Where):
    """Opens a file when it is loaded."""

    def loaded(self) -> None:
        assert self.log is not None
        self.file = self.log.open("rb")


class Briefly(Where):
    """Starts a thread when it is loaded, and waits for its end."""

    def loaded(self) -> None:
        thread = threading.Thread(target=time.monotonic)
        thread.start()
        thread.join(60)


class Failing(Where):
    """Cannot be loaded."""

    def loaded(self) -> None:
        raise KeyError("the table has moved")


def read(loader: Any) -> dict[str, Any]:
    """Return what an epoch says."""
    pids, parents, epochs, large, array = map(torch.cat, zip(*loader, strict=True))
    return {
        "workers": set(pids.tolist()),
        "parents": set(parents.tolist()),
        "epochs": epochs.tolist(),
        "large": large.tolist(),
        "array": array.tolist(),
    }


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def loads(log: Path) -> int:
    return log.read_text().count("loaded") if log.exists() else 0


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain until {what}"
        time.sleep(0.005)


def test_a_dataset_is_loaded_once_for_all_workers_and_epochs(tmp_path: Path) -> None:
    """All workers come from one process, also the one that takes the place of another."""
    log = tmp_path / "log"
    loader = af.DataLoader(Where(log), batch_size=2, num_workers=2)
    first = read(loader)
    found = [read(loader) for _ in range(2)]
    batches = iter(loader)
    pids, *_ = next(batches)
    os.kill(pids[0].item(), signal.SIGKILL)
    rest = {parent for batch in batches for parent in batch[1].tolist()}

    assert loads(log) == 1
    assert len(first["parents"]) == 1
    assert first["parents"] == found[0]["parents"] == found[1]["parents"] == rest
    (template,) = first["parents"]
    assert [name_of(template), name_of(parent_of(template))] == ["af-template", "af-modules"]
    assert loader.report().per_worker_load == ""


CHANGES: dict[str, Callable[[Where], Any]] = {
    "an attribute": lambda dataset: setattr(dataset, "epoch", 7),
    "an item of a large list": lambda dataset: dataset.large.__setitem__(3, ("other", -3)),
    "the order of a large list": lambda dataset: dataset.large.reverse(),
    "a large list": lambda dataset: setattr(dataset, "large", [("new", -i) for i in range(LARGE)]),
    "the content of an array": lambda dataset: dataset.array.__setitem__(5, -5),
    "the kind of an item": lambda dataset: dataset.large.__setitem__(3, (None, -3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_between_epochs_is_seen_in_the_next(name: str) -> None:
    """As under fork. The modules are not imported again."""
    dataset = Where()
    loader = af.DataLoader(dataset, batch_size=2, num_workers=2)
    first = read(loader)
    (template,) = first["parents"]
    base = parent_of(template)
    CHANGES[name](dataset)
    second = read(loader)

    assert second["epochs"] == [dataset.epoch] * 8
    assert second["large"] == [pair[1] for pair in dataset.large[:8]]
    assert second["array"] == dataset.array[:8].tolist()
    assert {k: v for k, v in first.items() if k != "workers"} != {k: v for k, v in second.items() if k != "workers"}
    assert second["parents"] != {template}
    assert parent_of(*second["parents"]) == base


class Kinds(Where):
    """Gives what its large list is in a worker."""

    def __getitem__(self, index: int) -> Any:
        return isinstance(self.large, list), type(self.large) is list, self.large[index], len(self.large)


def test_a_large_list_is_stored_once_for_all_workers() -> None:
    """A worker gets an object that behaves as the list does, and is no list: none of its items is there yet."""
    found = list(af.DataLoader(Kinds(), batch_size=None, num_workers=2, collate_fn=lambda sample: sample))

    assert found == [(True, False, (f"sample {i}", i), LARGE) for i in range(8)]


def test_variables_that_functions_of_a_script_use_are_seen_too() -> None:
    """They travel with the functions."""
    scale = [1]
    loader = af.DataLoader(Where(), batch_size=8, num_workers=1, collate_fn=lambda s: torch.tensor(s)[:, 4] * scale[0])
    first = next(iter(loader))
    scale[0] = 10

    assert torch.equal(next(iter(loader)), first * 10)


@pytest.mark.parametrize("kind", [Threaded, Opened])
def test_what_must_not_be_forked_is_loaded_by_each_worker(kind: type[Where], tmp_path: Path) -> None:
    """Threads would be missing in the workers, and a file would have one position for all. The report says so."""
    log = tmp_path / "log"
    log.touch()
    loader = af.DataLoader(kind(log), batch_size=2, num_workers=2)
    found = [read(loader) for _ in range(2)]

    assert found[0]["large"] == found[1]["large"] == list(range(8))
    (parent,) = found[0]["parents"]
    assert name_of(parent) == "af-forkserver"
    assert 1 + 2 <= loads(log) <= 1 + 2 * 2  # a worker may be late for an epoch
    expected = "1 thread (reader_of_tests)" if kind is Threaded else f"opened 1 file ({log})"
    report = loader.report()
    assert expected in report.per_worker_load
    assert expected in " ".join(str(report).split())


def test_a_thread_that_has_ended_does_no_harm(tmp_path: Path) -> None:
    """Only what is there when workers are forked counts."""
    loader = af.DataLoader(Briefly(tmp_path / "log"), batch_size=2, num_workers=2)
    read(loader)

    assert loader.report().per_worker_load == ""


def test_an_error_while_loading_is_the_error_of_the_loader() -> None:
    """Of the type that was raised, in every epoch."""
    loader = af.DataLoader(Failing(), num_workers=2)
    for _ in range(2):
        with pytest.raises(KeyError, match="the table has moved") as caught:
            next(iter(loader))
        assert isinstance(caught.value, af.UserCodeError)


THREAD_AT_IMPORT = """
import threading
threading.Thread(target=threading.Event().wait, name="pool_of_a_library", daemon=True).start()
class Numbers:
    def __len__(self): return 4
    def __getitem__(self, i): return i
"""


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Write a module of the user's, and import it."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"module_{os.urandom(4).hex()}"

    def write(text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield write
    sys.modules.pop(name, None)


def test_a_module_that_starts_threads_is_imported_by_each_worker(write_module: Callable[[str], Any]) -> None:
    """A library that makes a pool when it is imported."""
    loader = af.DataLoader(write_module(THREAD_AT_IMPORT).Numbers(), batch_size=4, num_workers=2)

    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]]
    assert "pool_of_a_library" in loader.report().per_worker_load


VERSIONED = """
VERSION = {version}
STEP = 0
class Numbers:
    def __len__(self): return 1
    def __getitem__(self, i): return {version}, VERSION, STEP
"""


def test_a_module_that_was_edited_and_loaded_again_is_the_new_one(write_module: Callable[[str], Any]) -> None:
    """As in a notebook with autoreload: no process that has the old code is used."""
    loader = af.DataLoader(write_module(VERSIONED.format(version=1)).Numbers(), num_workers=1)
    assert [batch[0].item() for batch in loader] == [1]
    module = write_module(VERSIONED.format(version=20))
    loader.dataset.__class__ = module.Numbers

    assert [batch[0].item() for batch in loader] == [20]


def test_settings_that_change_between_epochs_reach_workers(write_module: Callable[[str], Any]) -> None:
    """Without importing or loading anything again."""
    module = write_module(VERSIONED.format(version=1))
    loader = af.DataLoader(module.Numbers(), num_workers=1)
    found = []
    for step in (0, 5, 0):
        module.STEP = step
        found += [batch[2].item() for batch in loader]

    assert found == [0, 5, 0]


def test_the_environment_and_the_folder_are_those_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set after the first epoch is seen in the second."""
    loader = af.DataLoader([0], num_workers=1, collate_fn=lambda _: (os.environ.get("OF_TESTS"), str(Path.cwd())))
    first = next(iter(loader))
    monkeypatch.setenv("OF_TESTS", "yes")
    monkeypatch.chdir(tmp_path)

    assert first == (None, str(Path(first[1])))
    assert next(iter(loader)) == ("yes", str(tmp_path))


def test_loaders_of_the_same_modules_import_them_once() -> None:
    """A loader for training and one for validation, each with a dataset of its own."""
    loaders = [af.DataLoader(Where(), batch_size=4, num_workers=1) for _ in range(2)]
    templates = [read(loader)["parents"].pop() for loader in loaders]

    assert templates[0] != templates[1]
    assert parent_of(templates[0]) == parent_of(templates[1])


def test_the_process_that_has_loaded_a_dataset_ends_with_its_loader() -> None:
    """Nothing else needs it."""
    loader = af.DataLoader(Where(), batch_size=4, num_workers=1)
    (template,) = read(loader)["parents"]
    assert Path(f"/proc/{template}").exists()
    del loader
    until(lambda: not Path(f"/proc/{template}").exists(), "the template has ended")


# -- prestart ------------------------------------------------------------------------------------------------------


def test_prestart_loads_in_the_background(tmp_path: Path) -> None:
    """And the first epoch finds everything there."""
    log = tmp_path / "log"
    loader = af.DataLoader(Where(log), batch_size=2, num_workers=2)
    loader.prestart()
    until(lambda: loads(log) == 1, "the dataset was loaded")
    loader.prestart()

    assert read(loader)["large"] == list(range(8))
    assert loads(log) == 1


def test_a_dataset_that_is_changed_after_prestart_is_loaded_again(tmp_path: Path) -> None:
    """What counts is how it is when the first batch is asked for."""
    dataset = Where()
    loader = af.DataLoader(dataset, batch_size=2, num_workers=2)
    loader.prestart()
    dataset.epoch = 3

    assert read(loader)["epochs"] == [3] * 8


def test_prestart_without_workers_does_nothing() -> None:
    """There is nothing to start."""
    before = threading.enumerate()
    af.DataLoader(Where(), num_workers=0).prestart()

    assert threading.enumerate() == before


def test_prestart_says_what_cannot_be_sent() -> None:
    """At once, in the thread that calls it."""
    dataset = Where()
    dataset.lines = (line for line in "text")  # type: ignore[attr-defined]
    with pytest.raises(af.NotPicklable, match="lines"):
        af.DataLoader(dataset, num_workers=1).prestart()


def test_a_loader_that_was_prestarted_and_dropped_leaves_nothing(tmp_path: Path) -> None:
    """Also while its process still loads."""
    log = tmp_path / "log"
    loader = af.DataLoader(Where(log), num_workers=1)
    loader.prestart()
    del loader
    # The test's own check for leaked processes waits for their end.


# -- time and output -----------------------------------------------------------------------------------------------


class SlowToLoad(Where):
    """Takes longer to load than a batch may take."""

    def loaded(self) -> None:
        time.sleep(1.5)


@pytest.mark.parametrize("kind", [SlowToLoad, Threaded])
def test_a_timeout_does_not_count_the_start(kind: type[Where]) -> None:
    """It bounds the wait for a batch. Torch's workers have everything when they are forked."""
    loader = af.DataLoader(kind(), batch_size=8, num_workers=1, timeout=1)

    assert read(loader)["large"] == list(range(8))


def shout(samples: list[int]) -> list[int]:
    print("from a worker", flush=False)
    os.write(2, b"an error of a worker\n")
    return samples


def test_workers_write_where_the_trainer_writes_now(capfd: pytest.CaptureFixture[str]) -> None:
    """The fork server was started by an earlier test, with other descriptors."""
    loader = af.DataLoader([0, 1], num_workers=1, collate_fn=shout)
    assert list(loader) == [[0], [1]]
    out, err = capfd.readouterr()

    assert out.count("from a worker") == 2
    assert err.count("an error of a worker") == 2


ENDS = """
import os, signal, sys, time
import antifreeze as af

class Numbers:
    def __len__(self): return 64
    def __getitem__(self, i):
        return i, os.getpid(), os.getppid()

loader = af.DataLoader(Numbers(), batch_size=1, num_workers=2, prefetch_factor=1)
_, worker, template = next(iter(loader))
print(worker.item(), template.item(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_of_a_trainer_ends_the_whole_tree() -> None:
    """The kernel ends each process with the one that it was forked from."""
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60)
    pids = done.stdout.split()

    assert (done.returncode, len(pids), done.stderr) == (-signal.SIGKILL, 2, "")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), json.dumps(pids))


# -- what workers import while they work ---------------------------------------------------------------------------

COUNTED = """
import os, threading, time
from pathlib import Path

NAME = Path("/proc/self/comm").read_text().strip()
with open({log!r}, "a") as file:
    file.write(f"{{NAME}} {{os.getpid()}}\\n")
"""
THREAD_IN_COUNTED = 'threading.Thread(target=threading.Event().wait, name="of_tests", daemon=True).start()\n'
WAITS_AT_FIRST = """
if NAME == "af-template" and Path({log!r}).read_text().count(NAME) == 1:
    end_s = time.monotonic() + 60
    while not Path({log!r} + ".go").exists() and time.monotonic() < end_s:
        time.sleep(0.005)
"""


class Lazy(Where):
    """Imports modules when it is asked for a sample."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __getitem__(self, index: int) -> tuple[int, int, int, int, int]:
        for name in self.names:
            importlib.import_module(name)
        return super().__getitem__(index)


def imports(log: Path, process: str) -> list[int]:
    """Return the processes with this name that have imported the module."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith(process)]


def test_what_workers_import_is_imported_once_for_those_of_later_epochs(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """By a fork of their template, in the background. The dataset is not loaded again."""
    log = tmp_path / "log"
    module = write_module(COUNTED.format(log=str(log)))
    loader = af.DataLoader(Lazy(module.__name__), batch_size=2, num_workers=2)
    first = read(loader)
    until(lambda: imports(log, "af-template"), "the template has imported the module")
    found = [read(loader) for _ in range(3)]

    assert 1 <= len(imports(log, "af-worker")) <= 2
    assert [each["large"] for each in found] == [list(range(8))] * 3
    (template,) = imports(log, "af-template")
    assert found[0]["parents"] == found[1]["parents"] == found[2]["parents"] == {template}
    assert first["parents"] == {parent_of(template)}
    del loader
    until(lambda: not Path(f"/proc/{template}").exists(), "the template has ended")


def test_a_module_that_was_learned_and_then_edited_is_the_new_one(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """No worker is forked from a process that has the old one."""
    log = tmp_path / "log"
    loader = af.DataLoader(Lazy(), batch_size=2, num_workers=1)
    read(loader)
    module = write_module(COUNTED.format(log=str(log)))  # after the template has started
    loader.dataset.names = (module.__name__,)
    read(loader)
    until(lambda: imports(log, "af-template"), "the template has imported the module")
    write_module(COUNTED.format(log=str(log)) + "EDITED = True\n")
    before = len(imports(log, "af-worker"))
    read(loader)

    assert len(imports(log, "af-worker")) == before + 1


def test_a_module_that_the_trainer_has_not_imported_is_left_to_workers(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """A fork of the trainer would not have it either."""
    logs, name = [tmp_path / "known", tmp_path / "unknown"], f"unknown_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(COUNTED.format(log=str(logs[1])))
    known = write_module(COUNTED.format(log=str(logs[0])))
    loader = af.DataLoader(Lazy(name, known.__name__), batch_size=2, num_workers=1)
    read(loader)
    until(lambda: imports(logs[0], "af-template"), "the template has imported the other module")
    read(loader)

    assert [len(imports(log, "af-worker")) for log in logs] == [1, 2]
    assert imports(logs[1], "af-template") == []


def test_a_module_that_must_not_be_forked_is_left_to_workers(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """They are forked from where they were, and the module is not tried again."""
    log = tmp_path / "log"
    module = write_module(COUNTED.format(log=str(log)) + THREAD_IN_COUNTED)
    loader = af.DataLoader(Lazy(module.__name__), batch_size=2, num_workers=2)
    first = read(loader)
    until(lambda: imports(log, "af-template"), "the template has imported the module")
    (learner,) = imports(log, "af-template")
    until(lambda: not Path(f"/proc/{learner}").exists(), "the process that must not be forked has ended")
    found = [read(loader) for _ in range(2)]

    assert [each["large"] for each in found] == [list(range(8))] * 2
    assert found[0]["parents"] == found[1]["parents"] == first["parents"]
    assert [name_of(parent) for parent in first["parents"]] == ["af-template"]
    assert loader.report().per_worker_load == ""
    assert imports(log, "af-template") == [learner]


@pytest.mark.parametrize("victim", ["learner", "template"])
def test_a_process_that_is_killed_while_it_imports_costs_no_sample(
    victim: str, tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """The one that imports is not replaced. A template is, and what was learned is imported again."""
    log = tmp_path / "log"
    module = write_module((COUNTED + WAITS_AT_FIRST).format(log=str(log)))
    loader = af.DataLoader(Lazy(module.__name__), batch_size=1, num_workers=2)
    batches = iter(loader)
    found = [next(batches)]
    until(lambda: imports(log, "af-template"), "the template imports the module")
    (learner,) = imports(log, "af-template")
    template = parent_of(learner)
    os.kill(learner if victim == "learner" else template, signal.SIGKILL)
    found += list(batches)
    later = read(loader)

    assert [batch[3].item() for batch in found] == later["large"] == list(range(8))
    assert later["parents"] == ({template} if victim == "learner" else set(imports(log, "af-template")[1:]))
    assert len(imports(log, "af-template")) == (1 if victim == "learner" else 2)
    assert loader.report().per_worker_load == ""


def test_a_process_that_is_killed_after_it_has_imported_is_replaced(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """By a fork of the one that it was forked from: the dataset is not loaded again."""
    log = tmp_path / "log"
    module = write_module(COUNTED.format(log=str(log)))
    loader = af.DataLoader(Lazy(module.__name__), batch_size=1, num_workers=2)
    (template,) = read(loader)["parents"]
    until(lambda: imports(log, "af-template"), "the template has imported the module")
    batches = iter(loader)
    found = [next(batches)]
    os.kill(found[0][1].item(), signal.SIGKILL)
    found += list(batches)
    later = read(loader)

    assert [batch[3].item() for batch in found] == later["large"] == list(range(8))
    assert later["parents"] == set(imports(log, "af-template")[1:])
    assert parent_of(*later["parents"]) == template


def test_workers_do_not_wait_for_an_import_that_takes_too_long(
    tmp_path: Path, write_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forked from where they were."""
    monkeypatch.setattr("antifreeze.pool._template._IMPORT_TIMEOUT_S", 0.0)
    log = tmp_path / "log"
    module = write_module((COUNTED + WAITS_AT_FIRST).format(log=str(log)))
    loader = af.DataLoader(Lazy(module.__name__), batch_size=2, num_workers=2)
    first = read(loader)
    until(lambda: imports(log, "af-template"), "the template imports the module")
    second = read(loader)
    (learner,) = imports(log, "af-template")
    assert Path(f"/proc/{learner}").exists()
    (tmp_path / "log.go").touch()
    until(lambda: read(loader)["parents"] == {learner}, "workers are forked from where the module is")

    assert second["parents"] == first["parents"]
    assert second["large"] == list(range(8))


class LazyStep(Lazy):
    """Gives a variable of a module, and what a patched function of it returns."""

    def __getitem__(self, index: int) -> Any:
        module = importlib.import_module(self.names[0])
        return os.getppid(), module.STEP, module.function()


def test_settings_and_patches_of_a_learned_module_are_those_of_the_epoch(
    tmp_path: Path, write_module: Callable[[str], Any]
) -> None:
    """As of one that was imported before the dataset was loaded."""
    log = tmp_path / "log"
    module = write_module(COUNTED.format(log=str(log)) + "STEP = 0\ndef function(): return 0\n")
    loader = af.DataLoader(LazyStep(module.__name__), batch_size=8, num_workers=1)
    original, found = module.function, []
    for step, function in ((1, original), (2, lambda: 7), (3, original)):
        module.STEP, module.function = step, function
        found += [(step.unique().tolist(), value.unique().tolist()) for _, step, value in loader]
        until(lambda: imports(log, "af-template"), "the template has imported the module")

    assert found == [([1], [0]), ([2], [7]), ([3], [0])]
    assert len(imports(log, "af-worker")) == 1
