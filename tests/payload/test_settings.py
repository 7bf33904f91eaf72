"""What a script sets in modules is what a worker finds there, as if it were a fork; handles of a process are not."""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antifreeze.payload._settings import gather_settings, is_data, take_over

numbers = itertools.count()


class Config(dict[str, Any]):
    """As configurations are written: a dict whose keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Handle:
    """Has to be closed."""

    fd = 3

    def close(self) -> None:
        """Close it."""


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "text",
        Path("a"),
        {"a": [1, (2, {3})]},
        argparse.Namespace(a=[1]),
        types.SimpleNamespace(a=1),
        Config(a={"b": Config(c=1)}),
        [range(3), b"x", 1j],
    ],
)
def test_plain_data(value: object) -> None:
    assert is_data(value)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        threading.Lock(),
        [threading.Lock()],
        {"a": np.zeros(3)},
        argparse.Namespace(a=np.zeros(1)),
        len,
        int,
        sys,
        Handle(),
        iter([]),
        list(range(100_000)),
        "x" * 10_000_000,
    ],
)
def test_what_is_not_plain_data(value: object) -> None:
    assert not is_data(value)


def test_data_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)

    assert is_data(value)


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., types.ModuleType]]:
    """Return a function: a module of this text, changed in the trainer, as a worker has it."""
    made = []

    def carry(text: str, change: Callable[[Any], None], *, folder: str = ".") -> types.ModuleType:
        name = f"module_{next(numbers)}"
        made.append(name)
        place = tmp_path / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(place)
        module = importlib.import_module(name)
        monkeypatch.setitem(globals(), name, module)  # it is known by name to a module of the user
        change(module)
        settings = gather_settings(set())
        del sys.modules[name]
        # Only of this module: those of others are set at once.
        take_over(settings._replace(modules={k: v for k, v in settings.modules.items() if k == name}))
        return importlib.import_module(name)

    yield carry
    for name in made:
        sys.modules.pop(name, None)


CONFIG = """
from collections import OrderedDict
import types
ROOT, SIZE, WIDTH = "data", 3, 1.5
LIMIT = 3
cfg = {"a": 1, "deep": {"b": 2}}
names = ["x"]
marks = {1}
opts = types.SimpleNamespace(x=1, gone=2)
same = (cfg, names, marks, opts)
unset = None

class Dataset:
    root = "data"
    folds = []
    SCALE = 2
"""


def change_all(module: Any) -> None:
    module.ROOT, module.WIDTH, module.LIMIT, module.unset = "elsewhere", 2.5, 7, {"now": "set"}
    module.cfg["deep"]["b"] = 99
    module.names.append("y")
    module.marks.discard(1)
    module.opts.x = [2]
    del module.opts.gone
    module.added = "later"
    module.Dataset.root, module.Dataset.SCALE = Path("elsewhere"), 5
    module.Dataset.folds.append(1)


def test_variables_of_modules_and_classes_are_those_of_the_trainer(carried: Callable[..., Any]) -> None:
    found = carried(CONFIG, change_all)

    assert (found.ROOT, found.WIDTH, found.LIMIT, found.unset) == ("elsewhere", 2.5, 7, {"now": "set"})
    assert (found.cfg, found.names, found.marks) == ({"a": 1, "deep": {"b": 99}}, ["x", "y"], set())
    assert vars(found.opts) == {"x": [2]}
    assert found.added == "later"
    assert (found.Dataset.root, found.Dataset.folds, found.Dataset.SCALE) == (Path("elsewhere"), [1], 5)


def test_what_other_modules_have_by_another_name_is_changed_where_it_stands(carried: Callable[..., Any]) -> None:
    found = carried(CONFIG, change_all)

    assert all(a is b for a, b in zip(found.same, (found.cfg, found.names, found.marks, found.opts), strict=True))


def test_a_number_that_was_found_by_importing_may_be_a_handle(carried: Callable[..., Any]) -> None:
    def change(module: Any) -> None:
        module.fd, module.size = -5, -5

    found = carried("import os\nfd = os.getpid()\nsize = 3\n", change)

    assert found.fd == os.getpid()
    assert found.size == -5


LAZY = """
import threading
ready, root, _client = False, "data", None
table = {}

def client():
    global ready, _client
    if not ready:
        _client, ready = threading.Lock(), True
    return _client

def cell():
    global ready
    if not ready:
        table["cell"] = threading.Lock()
        ready = True
    return table["cell"]
"""


@pytest.mark.parametrize("name", ["client", "cell"])
def test_what_says_that_something_was_made_does_not_come_without_it(carried: Callable[..., Any], name: str) -> None:
    def change(module: Any) -> None:
        getattr(module, name)()
        module.root = "elsewhere"

    found = carried(LAZY, change)

    assert not found.ready
    assert getattr(found, name)() is not None
    assert found.root == "elsewhere"


def test_private_variables_are_a_modules_own(carried: Callable[..., Any]) -> None:
    def change(module: Any) -> None:
        module._hidden = 2

    assert carried("_hidden = 1\n", change)._hidden == 1


def test_only_constants_of_libraries_are_set(carried: Callable[..., Any]) -> None:
    def change(module: Any) -> None:
        module.LIMIT, module.STRICT, module.count, module.TABLE = None, True, 5, {"a": 1}

    text = "LIMIT = int(1e9)\nSTRICT = False\ncount = 0\nTABLE = {}\n"
    found = carried(text, change, folder="site-packages")

    assert (found.LIMIT, found.STRICT, found.count, found.TABLE) == (None, True, 0, {})


def test_a_module_that_cannot_be_set_is_left_as_it_is(carried: Callable[..., Any]) -> None:
    """What is wrong with one variable is no harm to another, and none to the import."""
    text = """
class Meta(type):
    def __setattr__(cls, name, value):
        raise AttributeError("frozen")

class Frozen(metaclass=Meta):
    size = "small"

root = "data"
"""

    def change(module: Any) -> None:
        type.__setattr__(module.Frozen, "size", "large")
        module.root = "elsewhere"

    found = carried(text, change)

    assert (found.Frozen.size, found.root) == ("small", "elsewhere")
