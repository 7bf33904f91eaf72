"""A setting is taken over only if its class is there: nothing is imported for it."""

from __future__ import annotations

import argparse
import importlib
import pickle
import sys
from pathlib import Path

import pytest

from antifreeze.payload._settings import rebuilt


def test_what_is_there_is_rebuilt() -> None:
    assert rebuilt(pickle.dumps(argparse.Namespace(a=[1, Path("b")]))) == argparse.Namespace(a=[1, Path("b")])


def test_nothing_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_long.py").write_text("class Formatter:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    blob = pickle.dumps(importlib.import_module("takes_long").Formatter())
    del sys.modules["takes_long"]

    with pytest.raises(pickle.UnpicklingError, match="takes_long is not imported here"):
        rebuilt(blob)
    assert "takes_long" not in sys.modules
