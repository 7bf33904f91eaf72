"""Control flow never depends on the wording of a message: facts travel as enums and fields, text is rendered last."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/antifreeze").rglob("*.py"))
WORDING = {
    "advice",
    "evidence",
    "evidence_lines",
    "explanation",
    "hint",
    "message",
    "problem",
    "title",
    "what",
    "words",
}
ERRORS = {"caught", "err", "error", "exc", "original"}
TESTS = {"count", "endswith", "find", "index", "match", "partition", "search", "startswith", "fullmatch"}


def is_wording(node: ast.AST) -> bool:
    """True for ``x.message`` and the like, and for ``str(error)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return isinstance(node.args[0], ast.Name) and node.args[0].id in ERRORS
    return isinstance(node, ast.Attribute) and node.attr in WORDING


def is_phrase(node: ast.AST) -> bool:
    """True for a literal of several letters; the kinds of NumPy's types are single ones."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 1


def compares_text(node: ast.Compare) -> bool:
    """True if one side is the text of a message, or if a kind, such as a class, is known by its name."""
    sides = [node.left, *node.comparators]
    if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        return is_wording(node.comparators[-1])
    by_kind = any(isinstance(side, ast.Attribute) and side.attr == "kind" for side in sides)
    return (by_kind or any(map(is_wording, sides))) and any(map(is_phrase, sides))


def matches_text(node: ast.Call) -> bool:
    """True for ``x.message.startswith(...)`` and ``PATTERN.match(x.message)``."""
    method = node.func
    if not isinstance(method, ast.Attribute) or method.attr not in TESTS:
        return False
    return any(map(is_wording, [method.value, *node.args]))


def decisions_by_text(tree: ast.AST) -> Iterator[str]:
    """Yield the expressions that compare, search or match the text of a message."""
    for node in ast.walk(tree):
        compares = isinstance(node, ast.Compare) and compares_text(node)
        if compares or (isinstance(node, ast.Call) and matches_text(node)):
            yield f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_decision_is_made_by_text(path: Path) -> None:
    """A message that is reworded, or a user's text that looks like one of ours, must change nothing."""
    assert list(decisions_by_text(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "'cannot be pickled' in failure.what",
        "line not in finding.title",
        "failure.kind == 'ReturnedNone'",
        "error.message.startswith('batch ')",
        "FRAME.fullmatch(finding.title)",
        "'timed out' in str(error)",
    ],
)
def test_the_rule_about_text_can_fail(code: str) -> None:
    """Each of these was, or could have been, in the code."""
    assert len(list(decisions_by_text(ast.parse(code)))) == 1


@pytest.mark.parametrize("code", ["dtype.kind in 'biuf'", "failure.reason is Reason.RAISED", "low.kind == 'u'"])
def test_the_rule_about_text_allows_facts(code: str) -> None:
    """Enums, and codes that are not written for people."""
    assert list(decisions_by_text(ast.parse(code))) == []
