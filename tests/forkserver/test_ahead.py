"""A package imported with its modules read ahead is the package that an ordinary import gives."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from antifreeze.forkserver import _ahead
from antifreeze.forkserver._ahead import read_ahead
from antifreeze.forkserver._shelf import ReadLoader, Shelf

NAMES = ("slowly", "slowly.part", "slowly.part.leaf")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a library that is slow to load: it is there only when the modules were read."""
    folder = tmp_path / "slowly"
    (folder / "part").mkdir(parents=True)
    (folder / "__init__.py").write_text("from slowly.part import leaf\nvalue = leaf.value\n")
    (folder / "part" / "__init__.py").write_text("")
    (folder / "part" / "leaf.py").write_text("value = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(_ahead._LIBRARIES, "slowly", ())
    yield folder
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The libraries are loaded as long as this is not set."""
    event = threading.Event()
    monkeypatch.setattr(_ahead, "_load", lambda *_: event.wait(60))
    return event


def sources(folder: Path) -> _ahead.Sources:
    files = ("__init__.py", "part/__init__.py", "part/leaf.py")
    return tuple(zip(NAMES, (str(folder / file) for file in files), strict=True))


def import_it() -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module("slowly")


def told(name: str) -> dict[str, Any]:
    spec = sys.modules[name].__spec__
    assert spec is not None
    return {
        "origin": spec.origin,
        "cached": spec.cached,
        "parent": spec.parent,
        "places": spec.submodule_search_locations,
    }


def test_modules_look_as_from_an_ordinary_import(package: Path, loading: threading.Event) -> None:
    import_it()
    ordinary = {name: told(name) for name in NAMES}
    for name in NAMES:
        del sys.modules[name]
    with read_ahead("slowly", sources(package)):
        loading.set()
        module = import_it()

    assert {name: told(name) for name in NAMES} == ordinary
    assert module.value == 1
    assert all(isinstance(sys.modules[name].__loader__, ReadLoader) for name in NAMES)


def test_the_package_itself_is_always_read(package: Path, loading: threading.Event) -> None:
    """Modules are known in the order in which their imports ended, so it stands last; libraries may be there before."""
    loading.set()
    with read_ahead("slowly", sources(package)[::-1]):
        import_it()

    assert isinstance(sys.modules["slowly"].__loader__, ReadLoader)


def test_what_was_read_is_what_is_run(package: Path, loading: threading.Event) -> None:
    """The file is not read again: that is what saves the time."""
    with read_ahead("slowly", sources(package)):
        (package / "part" / "leaf.py").write_text("value = 'changed'\n")
        loading.set()
        module = import_it()
    assert module.value == 1

    assert importlib.reload(sys.modules["slowly.part.leaf"]).value == "changed"


@pytest.mark.parametrize("wrong", ["gone", "syntax", "a folder"])
def test_a_file_that_cannot_be_read_is_left_to_the_import(wrong: str, package: Path, loading: threading.Event) -> None:
    leaf = package / "part" / "leaf.py"
    leaf.unlink()
    if wrong == "syntax":
        leaf.write_text("value = = 2\n")
    elif wrong == "a folder":
        leaf.mkdir()
    error = SyntaxError if wrong == "syntax" else ImportError
    with read_ahead("slowly", sources(package)):
        loading.set()
        with pytest.raises(error):
            import_it()
    assert [finder for finder in sys.meta_path if isinstance(finder, Shelf)] == []


def test_reading_ends_when_the_libraries_are_there(
    package: Path, loading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then there is nothing to be gained any more."""
    before, read = set(threading.enumerate()), []

    def and_the_library_is_there(_: object, name: str, __: str) -> None:
        read.append(name)
        loading.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)

    monkeypatch.setattr(Shelf, "read", and_the_library_is_there)
    with read_ahead("slowly", sources(package)):
        assert import_it().value == 1
    assert read == ["slowly"]
    assert set(threading.enumerate()) <= before


def test_what_it_needs_is_imported_meanwhile_and_extensions_before(
    package: Path, loading: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not there, or is broken, is left to who needs it."""
    (package.parent / "broken_need.py").write_text("1 / 0\n")
    before, order = set(threading.enumerate()), []
    monkeypatch.setitem(_ahead._NATIVE, "slowly", ("native", "none"))
    monkeypatch.setitem(_ahead._NEEDS, "slowly", ("broken_need", "pure"))

    def note(name: str) -> None:
        order.append((name, len(set(threading.enumerate()) - before)))
        if name == "none":
            raise ImportError
        if name == "broken_need":
            __import__(name)

    monkeypatch.setattr(importlib, "import_module", note)
    with read_ahead("slowly", sources(package)):
        loading.set()
    assert order == [("native", 0), ("none", 0), ("broken_need", 1), ("pure", 1)]


def test_no_extension_is_loaded_in_the_time_of_the_libraries() -> None:
    """It would wait for them. What this finds belongs to those that are imported before."""
    code = (
        "import importlib, sys\n"
        "from antifreeze.forkserver import _ahead\n"
        "def is_native(module): return (getattr(module, '__file__', None) or '').endswith('.so')\n"
        "def extensions(): return {name for name, module in sys.modules.items() if is_native(module)}\n"
        "_ahead._import(_ahead._NATIVE['torch'])\n"
        "before = extensions()\n"
        "for name in _ahead._NEEDS['torch']: importlib.import_module(name)\n"
        "print(sorted(extensions() - before), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[] False"


def test_a_package_without_native_libraries_is_imported_as_ever(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_ahead._LIBRARIES, "slowly")
    with read_ahead("slowly", sources(package)):
        assert import_it().value == 1
    assert not isinstance(import_it().__loader__, ReadLoader)


def test_libraries_that_are_not_there_are_left_to_the_import(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_ahead._LIBRARIES, "slowly", (("lib/none.so", 2), ("__init__.py", 2)))
    with read_ahead("slowly", sources(package)):
        assert import_it().value == 1
