"""What was replaced is found among all that a process has imported, and nothing else is."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import antifreeze as af
from antifreeze.payload import _replacements
from antifreeze.payload._replacements import find_replacements, packed


def found() -> set[str]:
    return {f"{each.module}.{each.name}" for each in find_replacements(set())}


def mine(*_: Any, **__: Any) -> str:
    return "mine"


def test_nothing_is_taken_for_replaced_that_libraries_have_made_themselves() -> None:
    """They wrap, re-export, register, cache and patch; here are all that tests use."""
    for name in ("lightning", "accelerate", "transformers", "polars", "pyarrow.dataset", "h5py", "lmdb", "sqlite3"):
        importlib.import_module(name)

    assert found() == set()


def test_what_is_replaced_is_found_and_forgotten_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was looked at before: only modules that have changed are looked at again."""
    assert found() == set()
    monkeypatch.setattr(json, "dumps", mine)
    assert found() == {"json.dumps"}
    monkeypatch.setattr(json.encoder.JSONEncoder, "default", mine)
    monkeypatch.setattr("textwrap.TextWrapper.fill", lambda *_: "")
    assert found() == {"json.dumps", "json.encoder.JSONEncoder.default", "textwrap.TextWrapper.fill"}
    monkeypatch.undo()
    assert found() == set()


def test_what_a_module_imports_from_a_test_is_not_a_replacement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Helpers of tests do; what a test puts into them is one all the same."""
    (tmp_path / "helper_of_tests.py").write_text("from test_replacements import mine\n\ndef own(): ...\n")
    monkeypatch.setitem(sys.modules, "test_replacements", sys.modules[__name__])
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = importlib.import_module("helper_of_tests")
    try:
        assert found() == set()
        monkeypatch.setattr(helper, "own", mock.Mock())
        assert found() == {"helper_of_tests.own"}
    finally:
        del sys.modules["helper_of_tests"]


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property, functools.lru_cache, functools.partial])
def test_a_function_is_found_in_whatever_wrapping(monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    monkeypatch.setattr(textwrap.TextWrapper, "fill", wrap(mine))

    assert found() == {"textwrap.TextWrapper.fill"}


@pytest.mark.parametrize("options", [{}, {"new": lambda: 1}, {"return_value": 3}, {"autospec": True}, {"wraps": mine}])
def test_mocks_are_found(options: dict[str, Any]) -> None:
    with mock.patch("textwrap.dedent", **options), mock.patch.object(torch.Tensor, "tolist", **options):
        assert found() == {"textwrap.dedent", "torch.Tensor.tolist"}


def test_hooks_for_the_end_of_a_program_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", mine)
    monkeypatch.setattr(threading, "excepthook", mine)

    assert found() == set()


def test_what_was_replaced_is_not_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may have had a model of many gigabytes."""

    class Model:
        alive = True

        def __del__(self) -> None:
            type(self).alive = False

    monkeypatch.setattr(textwrap, "model", Model(), raising=False)
    found()
    monkeypatch.setattr(textwrap, "model", None)

    monkeypatch.undo()
    assert not Model.alive


def test_each_name_is_warned_of_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(_replacements, "_warned", set())
    monkeypatch.setattr(time, "sleep", mine)
    monkeypatch.setattr(json, "dumps", mine)

    def refuse(_: Any) -> bytes:
        raise TypeError("cannot pickle it")

    for _ in range(2):
        assert packed(find_replacements(set()), refuse) == ()
    assert sorted(record.getMessage().split(" was replaced")[0] for record in caplog.records) == [
        "antifreeze: json.dumps",
        "antifreeze: time.sleep",
    ]
    assert "TypeError: cannot pickle it" in caplog.text


class Dumps(torch.utils.data.Dataset[str]):
    """Calls a library."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, i: int) -> str:
        return json.dumps(i) + textwrap.dedent(" x")


def test_what_a_test_replaces_reaches_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(json, "dumps", lambda _: str(tmp_path))
    with mock.patch("textwrap.dedent", return_value="y"):
        batches = list(af.DataLoader(Dumps(), num_workers=1))

    assert batches == [[f"{tmp_path}y"]] * 2
