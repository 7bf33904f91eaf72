"""A name means one thing: no module and no public class name occurs in two packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from conftest import LONG_FILES

ROOT = Path(__file__).parents[2] / "src"
SOURCES = sorted((ROOT / "antifreeze").rglob("*.py"))
TO_RENAME = {"tensors"}
"""``datasets.tensors`` is public, ``ipc._tensors`` is not."""


def modules_of(path: Path) -> Iterator[str]:
    """Yield the name of a module; that of a private one without its underscore."""
    if path.stem not in ("__init__", "__main__"):
        yield path.stem.removeprefix("_")


def classes_of(path: Path) -> Iterator[str]:
    """Yield the public classes of a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def in_two_packages(found: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the names that occur in more than one package, each with its packages."""
    packages: dict[str, set[str]] = defaultdict(set)
    for name, path in found:
        packages[name].add(path.parent.relative_to(ROOT).as_posix())
    return {name: sorted(places) for name, places in sorted(packages.items()) if len(places) > 1}


def test_a_module_name_is_used_in_one_package() -> None:
    assert in_two_packages((name, path) for path in SOURCES for name in modules_of(path)).keys() <= TO_RENAME


def test_a_class_name_is_used_in_one_package() -> None:
    assert in_two_packages((name, path) for path in SOURCES for name in classes_of(path)) == {}


def test_the_rule_can_fail() -> None:
    """A check that cannot fail checks nothing."""
    found = [("File", ROOT / "antifreeze/a/_x.py"), ("File", ROOT / "antifreeze/b/_y.py")]

    assert in_two_packages(found) == {"File": ["antifreeze/a", "antifreeze/b"]}


def test_files_of_tests_that_begin_first_exist() -> None:
    """A file that was renamed would begin last, and everybody would wait for it."""
    assert set(LONG_FILES) <= {path.name for path in Path(__file__).parents[1].rglob("test_*.py")}
