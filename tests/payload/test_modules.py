"""Looking at an object runs none of its code."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antifreeze.payload._modules import (
    attributes,
    class_members,
    find_in_class,
    is_library,
    module_members,
    needs_torch,
    slots,
)
from antifreeze.payload._settings import gather_settings, is_data


def trap(*_: Any, **__: Any) -> Any:
    """Stand for whatever user code may do."""
    raise AssertionError("user code was run")


class Meta(type):
    """Traps whoever asks a class."""

    __getattr__ = __instancecheck__ = __subclasscheck__ = __eq__ = __bool__ = trap
    __hash__ = type.__hash__


METHODS = "__getattribute__ __getattr__ __len__ __iter__ __bool__ __eq__ __contains__ __getstate__ keys values items"


def trapped(base: type) -> Any:
    """Return an object of a class that traps whoever asks it."""
    names: dict[str, Any] = dict.fromkeys(METHODS.split(), trap)
    names |= {"__class__": property(trap), "__dict__": property(trap), "__hash__": object.__hash__}
    return Meta("Trapped", (base,), names)()


@pytest.mark.parametrize("base", [object, dict, list, Exception, types.SimpleNamespace])
def test_an_object_is_looked_at_as_it_is_stored(base: type) -> None:
    found = trapped(base)

    assert attributes(found) == {}
    assert list(slots(found)) == []
    assert not is_data(found)
    assert not is_data([found])
    assert find_in_class(type(found), "__len__") is trap
    assert "__len__" in class_members(type(found))


class Slotted:
    """Has attributes outside of its ``__dict__``."""

    __slots__ = ("__dict__", "one", "two")


def test_attributes_are_found_wherever_they_are_stored() -> None:
    found = Slotted()
    found.one, found.three = 1, 3  # type: ignore[attr-defined]

    assert dict(slots(found)) == {"one": 1}
    assert attributes(found) == {"three": 3}
    assert attributes(3) == {}


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    """Return a module of the user that is full of traps."""
    (tmp_path / "full_of_traps.py").write_text("limit = 3\n")
    spec = importlib.util.spec_from_file_location("full_of_traps", tmp_path / "full_of_traps.py")
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    vars(found).update({f"value{i}": trapped(base) for i, base in enumerate((object, dict, list))})
    vars(found).update(limit=3, Kind=type(trapped(object)), __getattr__=trap)
    sys.modules["full_of_traps"] = found
    yield found
    del sys.modules["full_of_traps"]


def test_settings_are_gathered_without_running_code(module: Any) -> None:
    settings = gather_settings(set())

    assert set(settings.modules["full_of_traps"].values) == {"limit"}
    assert {"value0", "value1", "value2"} <= set(settings.modules["full_of_traps"].bound)
    assert not needs_torch({"full_of_traps"})
    assert not is_library(module)


def test_a_module_that_is_loaded_when_it_is_asked_stays_unloaded(tmp_path: Path) -> None:
    (tmp_path / "lazy_one.py").write_text("raise RuntimeError('it was loaded')\n")
    spec = importlib.util.spec_from_file_location("lazy_one", tmp_path / "lazy_one.py")
    assert spec is not None
    assert spec.loader is not None
    lazy = importlib.util.module_from_spec(spec)
    importlib.util.LazyLoader(spec.loader).exec_module(lazy)
    sys.modules["lazy_one"] = lazy
    try:
        gather_settings(set())
        needs_torch({"lazy_one"})
        assert "__name__" in module_members(lazy)
    finally:
        del sys.modules["lazy_one"]
