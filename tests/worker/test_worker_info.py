"""What user code learns about the worker it runs in."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data._utils import worker as torch_worker

from antifreeze.worker import _worker_info
from antifreeze.worker._worker_info import asked, install, reset_asked, update


@pytest.fixture
def _this_is_a_worker() -> Iterator[None]:
    """Make this process a worker for one test."""
    install(1, 3, 42, "dataset")
    reset_asked()
    yield
    torch_worker._worker_info = None
    _worker_info._state.facts, _worker_info._state.info = {}, None
    reset_asked()


def run(code: str) -> str:
    """Run code in a process that has not imported torch, and return what it prints."""
    head = "import sys\nfrom antifreeze.worker._worker_info import *\nassert 'torch' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- torch is loaded -----------------------------------------------------------------------------------------------


def test_the_trainer_is_no_worker() -> None:
    """Code that asks in the main process gets None."""
    assert torch.utils.data.get_worker_info() is None


@pytest.mark.usefixtures("_this_is_a_worker")
def test_torch_tells_what_was_installed() -> None:
    """As in torch's own workers, and of torch's own class."""
    info: Any = torch.utils.data.get_worker_info()

    assert isinstance(info, torch_worker.WorkerInfo)
    assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 3, 42, "dataset")


@pytest.mark.usefixtures("_this_is_a_worker")
def test_it_looks_like_torchs() -> None:
    """Also printed."""
    plain = torch_worker.WorkerInfo(id=1, num_workers=3, seed=42, dataset="dataset")  # type: ignore[arg-type]
    info: Any = torch.utils.data.get_worker_info()

    assert repr(info) == repr(plain)
    assert type(info).__qualname__ == "WorkerInfo"
    assert dataclasses.asdict(info) == dataclasses.asdict(plain)
    assert hash(info) == hash(plain)


@pytest.mark.usefixtures("_this_is_a_worker")
def test_it_cannot_be_changed_by_user_code() -> None:
    """Torch's cannot either."""
    info: Any = torch.utils.data.get_worker_info()

    with pytest.raises(AttributeError):
        info.id = 3


@pytest.mark.usefixtures("_this_is_a_worker")
@pytest.mark.parametrize("name", ["id", "num_workers"])
def test_reading_the_place_among_the_workers_is_noted(name: str) -> None:
    """Who reads it splits the data by it."""
    getattr(torch.utils.data.get_worker_info(), name)

    assert asked()
    reset_asked()
    assert not asked()


@pytest.mark.usefixtures("_this_is_a_worker")
def test_other_uses_are_not_noted() -> None:
    """Who only looks whether there is a worker, prints it or takes the seed does not split."""
    info: Any = torch.utils.data.get_worker_info()
    _ = info is not None, info != None, bool(info), repr(info), str(info), info.seed, info.dataset  # noqa: E711
    _ = isinstance(info, torch_worker.WorkerInfo), hasattr(info, "rng"), pickle.dumps(info)

    assert not asked()


@pytest.mark.usefixtures("_this_is_a_worker")
def test_printing_does_not_hide_an_earlier_question() -> None:
    """Once asked is asked."""
    info: Any = torch.utils.data.get_worker_info()
    _ = info.id
    repr(info)

    assert asked()


@pytest.mark.usefixtures("_this_is_a_worker")
def test_a_copy_is_torchs_plain_object() -> None:
    """User code may put it into a sample."""
    info: Any = torch.utils.data.get_worker_info()
    for travelled in (pickle.loads(pickle.dumps(info)), copy.copy(info), copy.deepcopy(info)):  # noqa: S301
        assert type(travelled) is torch_worker.WorkerInfo
        assert (travelled.id, travelled.num_workers, travelled.seed, travelled.dataset) == (1, 3, 42, "dataset")


@pytest.mark.usefixtures("_this_is_a_worker")
def test_an_epoch_brings_another_dataset_and_seed() -> None:
    """Also into what user code has kept."""
    info: Any = torch.utils.data.get_worker_info()
    update(dataset="dataset", seed=43)
    assert (info.seed, info.dataset) == (43, "dataset")
    update(dataset=None, seed=43)
    assert (info.seed, info.dataset) == (43, None)
    assert torch.utils.data.get_worker_info() is info


@pytest.mark.usefixtures("_this_is_a_worker")
def test_installing_again_replaces_it() -> None:
    """Once before the dataset is there, and once when it is."""
    install(2, 4, 5, "another")

    info: Any = torch.utils.data.get_worker_info()
    assert (info.id, info.dataset) == (2, "another")


def test_updating_what_is_not_installed_does_nothing() -> None:
    """The trainer's own process has nothing to tell."""
    update(dataset="x", seed=3)

    assert torch.utils.data.get_worker_info() is None
    assert not _worker_info._state.facts


def test_torch_before_2_13_had_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took keywords only and guarded its attributes by itself."""

    class WorkerInfo:
        __initialized = False

        def __init__(self, **facts: Any) -> None:
            for name, value in facts.items():
                setattr(self, name, value)
            self.__keys = tuple(facts)
            self.__initialized = True

        def __setattr__(self, name: str, value: Any) -> None:
            if self.__initialized:
                raise RuntimeError(f"Cannot assign attributes to {type(self).__name__} objects")
            super().__setattr__(name, value)

        def __repr__(self) -> str:
            return f"WorkerInfo({', '.join(f'{key}={getattr(self, key)}' for key in self.__keys)})"

    monkeypatch.setattr(torch_worker, "WorkerInfo", WorkerInfo)
    monkeypatch.setattr(torch_worker, "_worker_info", None)
    monkeypatch.setattr(_worker_info._state, "facts", {})
    monkeypatch.setattr(_worker_info._state, "info", None)
    install(1, 3, 42, "dataset")
    reset_asked()
    info: Any = torch.utils.data.get_worker_info()
    update(dataset="dataset", seed=43)

    assert repr(info) == "WorkerInfo(id=1, num_workers=3, seed=43, dataset=dataset)"
    assert not asked()
    assert info.num_workers == 3
    assert asked()
    reset_asked()


# -- torch is not loaded -------------------------------------------------------------------------------------------


def test_torch_is_told_when_user_code_imports_it() -> None:
    """Without being imported for it, and without a trace in the machinery of imports."""
    code = """
finders = list(sys.meta_path)
install(0, 2, 7, 'dataset')
install(1, 3, 42, 'dataset')
update(dataset='dataset', seed=43)
import torch.utils.data
from torch.utils.data._utils import worker
info = torch.utils.data.get_worker_info()
assert isinstance(info, worker.WorkerInfo) and not asked()
assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 3, 43, 'dataset') and asked()
reset_asked()
update(dataset='other', seed=43)
assert info.dataset == 'other' and not asked()
assert [f for f in sys.meta_path if 'antifreeze' in type(f).__module__] == []
assert all(f in sys.meta_path for f in finders)
import inspect
assert 'get_worker_info' in inspect.getsource(worker)
print(info)
"""
    said = run(code)
    assert said.startswith("WorkerInfo(id=1, num_workers=3, seed=43, dataset='other'")


def test_torch_imported_in_the_middle_of_a_task_sees_its_numbers() -> None:
    """Else the first task of a worker would differ from the same task in a worker that has torch already."""
    code = """
from antifreeze.worker._seeding import seed_now
install(0, 1, 0, None)
seed_now(5, 6, 7)
import torch
late = torch.rand(3)
seed_now(5, 6, 7)
print(torch.equal(late, torch.rand(3)))
"""
    assert run(code) == "True"
