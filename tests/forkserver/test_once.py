"""What is done once gives what doing it again and again gives."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from types import FrameType
from typing import Any

import pytest

from antifreeze.forkserver._once import compiled_once, know_files


def two_classes() -> tuple[type[Any], type[Any]]:
    def make(name: str, kind: type) -> type[Any]:
        return dataclasses.make_dataclass(name, [("value", kind, dataclasses.field(default=kind(3)))], order=True)

    return make("One", int), make("Other", float)


def told(cls: type[Any]) -> dict[str, Any]:
    names = ("__init__", "__eq__", "__lt__", "__repr__")
    functions = {name: vars(cls)[name] for name in names}
    return {
        name: (f.__qualname__, f.__annotations__, f.__module__, f.__code__.co_filename, str(inspect.signature(f)))
        for name, f in functions.items()
    }


def test_data_classes_are_what_they_are_without() -> None:
    ordinary = two_classes()
    with compiled_once():
        found = two_classes()

    assert [told(cls) for cls in found] == [told(cls) for cls in ordinary]
    assert [repr(cls()) for cls in found] == [repr(cls()) for cls in ordinary]
    one, other = found
    assert one.__init__.__annotations__["value"] is int, "not its name"
    assert (one(), other(2.0) < other()) == (one(3), True)
    assert one.__eq__.__code__ is other.__eq__.__code__, "what the same text says is the same code"


def test_afterwards_the_builtin_is_called_again() -> None:
    before = dict(vars(dataclasses))
    with pytest.raises(ZeroDivisionError), compiled_once(), compiled_once():
        raise ZeroDivisionError
    assert vars(dataclasses) == before


def frame() -> FrameType:
    return sys._getframe()


def test_inspect_finds_a_known_file_without_looking_at_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "modulesbyfile", {})
    monkeypatch.setattr(inspect, "_filesbymodname", {})
    ordinary = inspect.getframeinfo(frame())
    inspect.modulesbyfile.clear()
    vars(inspect)["_filesbymodname"].clear()
    monkeypatch.setattr(os.path, "realpath", None)
    know_files([(__name__, __file__)])

    found = inspect.getframeinfo(frame())
    assert (found.filename, found.function, found.code_context) == (__file__, "frame", ordinary.code_context)
    assert inspect.getmodule(frame(), __file__) is sys.modules[__name__]


def test_what_inspect_knows_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "modulesbyfile", {"/a.py": "a"})
    know_files([("b", "/a.py"), ("c", "/c.py")])
    assert inspect.modulesbyfile == {"/a.py": "a", "/c.py": "c"}
