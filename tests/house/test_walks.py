"""The walks that docs/design draws exist: files, functions, and not too many of either."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent.parent
PAGE = HOUSE / "docs" / "design" / "007-one-loader-core.md"
STEP = re.compile(r"^\| \d+ \| `([\w/]+\.py)::([\w.]+)` \|", re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    """Return the functions of a module; methods with their class."""
    tree = ast.parse(path.read_text())
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(("title", "most"), [("The walk of a row", 35), ("The walk of a sample", 30)])
def test_a_walk_is_short_and_true(title: str, most: int) -> None:
    """Functions that were renamed or moved are renamed there, too."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    steps = STEP.findall(section)

    missing = [f"{file}::{name}" for file, name in steps if name not in functions_of(HOUSE / "src/antifreeze" / file)]
    assert missing == []
    assert 10 < len(steps) <= most
    assert len({file.partition("/")[0] for file, _ in steps}) <= 6
