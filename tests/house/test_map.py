"""The maps that people read first name exactly the packages that exist."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.parent.name for path in (ROOT / "src/antifreeze").glob("*/__init__.py")}
RETIRED = {"crew", "child", "workers", "nursery", "transport", "supervise", "ranks", "api", "adapters", "loader"}


def layers_of(text: str) -> list[list[str]]:
    """Return the lines of the first map in a page: on each the packages, whatever is said about them."""
    block = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block
    return [re.split(r" \| ", re.split(r"\s{2,}", line.strip())[0]) for line in block[1].splitlines()]


def contract() -> list[list[str]]:
    """Return the layers that import-linter enforces."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [entry["layers"] for entry in settings if entry["type"] == "layers"]
    return [line.split(" | ") for line in layers if line != "__main__"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design/002-layout.md"])
def test_a_map_shows_the_layers_that_are_enforced(page: str) -> None:
    """Same packages, same order, and none that does not exist."""
    layers = layers_of((ROOT / page).read_text())

    assert layers == contract()
    assert {name for line in layers for name in line} == PACKAGES


def test_the_test_can_fail() -> None:
    """A check that cannot fail checks nothing."""
    assert layers_of("```text\na | b   about both\ncore\n```\n") == [["a", "b"], ["core"]]


def test_design_notes_name_files_that_exist() -> None:
    """A note points to the code; the code moves."""
    notes = sorted((ROOT / "docs/design").glob("*.md"))
    named = {(note.name, path) for note in notes for path in re.findall(r"`(\w+/_\w+\.py)`", note.read_text())}

    assert named
    assert [path for path in named if not (ROOT / "src/antifreeze" / path[1]).is_file()] == []


def test_design_notes_name_no_package_by_its_old_name() -> None:
    """Except the sentence that says what the old names were."""
    for note in sorted((ROOT / "docs/design").glob("*.md")):
        assert {name for name in RETIRED if f"`{name}`" in note.read_text()} == set(), note.name


def test_every_diagram_is_rendered() -> None:
    """Run ``python tools/render_diagrams.py``: the site shows pictures, not scripts of another server."""
    diagram = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    texts = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    names = {hashlib.sha256(source.encode()).hexdigest()[:12] for text in texts for source in diagram.findall(text)}

    assert {path.stem for path in (ROOT / "docs/img/diagrams").glob("*.svg")} == names
