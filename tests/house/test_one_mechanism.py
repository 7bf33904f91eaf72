"""One mechanism per need: what was there three times in different versions is not to come back."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src/antifreeze"
SOURCES = sorted(path for path in ROOT.rglob("*.py") if "doctor" not in path.relative_to(ROOT).parts)

READS_PROC = {
    "core/_procfs.py",  # the reader
    "diagnosis/_proc.py",  # the reader of control groups
    "ipc/_mapped_memory.py",  # maps of this process, which is not stuck
    "payload/_reopen.py",  # reopens a descriptor by its name there
    "payload/_databases.py",
}
STARTS_DAEMONS = {
    "core/_waiting.py",  # a call that may hang
    "decode/_threads.py",  # decoders, each with a note of its progress
    "distributed/_exchange.py",  # loops that live as long as a loader
    "forkserver/_ahead.py",
    "payload/_reducers.py",
    "pool/_supervisor.py",
    "worker/_main.py",
}


def docstrings(tree: ast.AST) -> set[int]:
    """Return the texts that only readers see."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def reads_proc(tree: ast.AST) -> bool:
    """True if a path below ``/proc`` or of a control group is written out."""
    unseen = docstrings(tree)
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return any(text.value.startswith(("/proc", "/sys/fs", "sys/fs")) for text in texts if id(text) not in unseen)


def starts_daemons(tree: ast.AST) -> bool:
    """True if a thread is made a daemon."""
    return any(isinstance(node, ast.keyword) and node.arg == "daemon" for node in ast.walk(tree))


def modules(has: Callable[[ast.AST], bool]) -> Iterator[str]:
    for path in SOURCES:
        if has(ast.parse(path.read_text())):
            yield path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize(("has", "allowed"), [(reads_proc, READS_PROC), (starts_daemons, STARTS_DAEMONS)])
def test_it_is_done_in_known_places_only(has: Callable[[ast.AST], bool], allowed: set[str]) -> None:
    """Extend the mechanism that is there: ``core._procfs`` and ``core.DaemonCall``."""
    assert set(modules(has)) <= allowed


@pytest.mark.parametrize(
    ("has", "code"),
    [(reads_proc, "f'/proc/{pid}/stat'"), (reads_proc, "root / 'sys/fs/cgroup'"), (starts_daemons, "T(daemon=True)")],
)
def test_the_rule_can_fail(has: Callable[[ast.AST], bool], code: str) -> None:
    """A check that cannot fail checks nothing."""
    assert has(ast.parse(f"found = {code}"))
