"""Replacements are put in place, and the originals back: a worker may be the fork of a process that had others."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from antifreeze.payload import Patch
from antifreeze.payload._replacements import apply_patches, original

TEXT = """
def read():
    return "original"

class Image:
    @staticmethod
    def show():
        return "original"
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that imports a library."""
    (tmp_path / "patched_library.py").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda: importlib.import_module("patched_library")
    apply_patches(())
    sys.modules.pop("patched_library", None)


def patch(name: str, value: Any) -> Patch:
    return Patch("patched_library", name, cloudpickle.dumps(value))


@pytest.mark.parametrize("is_imported", [True, False])
def test_what_is_replaced_is_put_back_when_it_is_replaced_no_more(library: Any, is_imported: bool) -> None:
    if is_imported:
        library()
    apply_patches([patch("read", lambda: "mine"), patch("Image.show", staticmethod(lambda: "mine"))])
    found = library()
    assert (found.read(), found.Image.show()) == ("mine", "mine")
    assert (original("patched_library", "read")(), original("patched_library", "Image.show")()) == (
        "original",
        "original",
    )

    apply_patches([patch("read", lambda: "another"), patch("added", 3)])
    assert (found.read(), found.Image().show(), found.added) == ("another", "original", 3)
    assert original("patched_library", "read")() == "original"

    apply_patches(())
    assert (found.read(), hasattr(found, "added")) == ("original", False)


def test_of_several_that_wait_for_an_import_the_last_one_counts(library: Any) -> None:
    apply_patches([patch("read", lambda: "first")])
    apply_patches([patch("read", lambda: "second")])

    assert library().read() == "second"
    assert original("patched_library", "read")() == "original"


def test_one_that_is_gone_before_the_import_is_not_applied(library: Any) -> None:
    apply_patches([patch("read", lambda: "mine")])
    apply_patches(())

    assert library().read() == "original"


def test_one_that_cannot_be_rebuilt_is_named_and_harms_nothing(library: Any, caplog: pytest.LogCaptureFixture) -> None:
    found = library()
    apply_patches([Patch("patched_library", "read", pickle.dumps(3)[:-1]), patch("Image.show", lambda *_: "mine")])

    assert (found.read(), found.Image().show()) == ("original", "mine")
    assert "patched_library.read was replaced in the trainer, but could not be replaced in a worker" in caplog.text
