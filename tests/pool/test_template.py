"""Which process of a template forks workers, and what it has learned from them."""

from __future__ import annotations

import sys
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from antifreeze.pool._template import _IMPORT_TIMEOUT_S, _MAX_ROUNDS, ExtraModules, Lineage, Template


def a_template() -> Template:
    payload: Any = SimpleNamespace(per_worker_reason="", modules=())
    return Template(payload, {}, None)  # type: ignore[arg-type]  # it is not looked at


def a_server(num_extra: int = 0, began_s: float = 0.0) -> Any:
    return SimpleNamespace(num_extra=num_extra, began_s=began_s)


def test_names_are_learned_once_in_the_order_of_the_worker() -> None:
    """A module comes after those that it needs."""
    learned = ExtraModules()
    learned.add(["b", "a"])
    learned.add(["a", "c", "b"])

    assert learned.names == ("b", "a", "c")


def test_after_harm_only_what_was_harmless_is_known() -> None:
    """And nothing is added to it."""
    learned = ExtraModules()
    learned.add(["a", "b"])
    learned.give_up(1)
    learned.add(["c"])

    assert learned.names == ("a",)


def test_a_module_at_a_time_is_learned_for_some_rounds_only() -> None:
    """Each round is a process. To import the same ones again is none."""
    learned = ExtraModules()
    for number in range(_MAX_ROUNDS + 3):
        learned.add([f"module {number}"])
        for _ in range(3):
            learned.begin()

    assert len(learned.names) == _MAX_ROUNDS


def test_a_process_learns_what_it_has_not_and_takes_over_when_it_has() -> None:
    """One at a time. What comes meanwhile is for the next one."""
    template, servers = a_template(), [a_server() for _ in range(2)]
    lineage = Lineage(weakref.ref(template))
    template.extra_modules.add(["a"])
    assert lineage.to_import() == ()  # there is no process that it could be forked from
    lineage.processes = [servers[0]]
    assert lineage.to_import() == ("a",)
    servers[1].num_extra = template.extra_modules.begin()
    lineage.importer = servers[1]
    template.extra_modules.add(["b"])
    assert lineage.to_import() == ()
    assert lineage.server is servers[0]
    lineage.promote_importer()

    assert lineage.server is servers[1]
    assert lineage.to_import() == ("b",)


def test_without_the_last_process_the_one_before_forks_workers() -> None:
    """And what the last one had imported is to be imported again."""
    template, servers = a_template(), [a_server(), a_server(1), a_server(1)]
    template.extra_modules.add(["a"])
    lineage = Lineage(weakref.ref(template), processes=servers[:2], importer=servers[2])
    assert [lineage.forget(server) for server in (servers[2], servers[1], a_server())] == [True, True, False]

    assert lineage.server is servers[0]
    assert lineage.to_import() == ("a",)


def test_workers_wait_for_a_learner_but_not_for_long() -> None:
    """They can do without."""
    lineage = Lineage(weakref.ref(a_template()))
    assert not lineage.should_wait(0.0)
    lineage.importer = a_server(1, began_s=100.0)

    assert lineage.should_wait(100.0)
    assert not lineage.should_wait(100.0 + _IMPORT_TIMEOUT_S)


def test_only_what_the_trainer_has_is_learned_and_its_files_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that travel by value cannot be imported anywhere else."""
    found = {name: ModuleType(name) for name in ("own_of_tests", "by_value_of_tests")}
    for name, module in found.items():
        (tmp_path / f"{name}.py").touch()
        module.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, module)
    template = a_template()
    names = ("not_there_of_tests", "own_of_tests", "json", "by_value_of_tests")

    assert template.select_extra_modules(names, {"by_value_of_tests"}) == ("own_of_tests", "json")
    assert list(template.sources) == ["own_of_tests"]
