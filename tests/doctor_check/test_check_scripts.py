"""Patterns with planted faults: exactly the marked lines are found, and nothing in correct code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from antifreeze.doctor.check import (
    MACHINE_RULES,
    SCRIPT_RULES,
    CheckFinding,
    Facts,
    Rule,
    check_machine,
    check_script,
    parse,
    rules,
)

PATTERNS = sorted((Path(__file__).parent / "patterns").glob("*.py"))
TROUBLESHOOTING = Path(__file__).parents[2] / "docs/troubleshooting.md"
_MARK = re.compile(r"# finds: (?P<codes>.*)$")


def facts_of(text: str) -> Facts:
    """Return the facts that the first line of a pattern asks for."""
    head = text.splitlines()[0]
    given = (
        dict(pair.split("=") for pair in head.removeprefix("# facts: ").split()) if head.startswith("# facts") else {}
    )
    cores = int(given.get("cores", 16))
    method = "forkserver" if "python" in given else given.get("start_method", "fork")
    shm = int(given["shm"]) << 20 if "shm" in given else 32 << 30
    return Facts(cores=cores, machine_cores=cores, start_method=method, shm_nbytes=shm, shm_free_nbytes=shm)


def found_in(text: str, facts: Facts | None = None) -> list[CheckFinding]:
    facts = facts or facts_of(text)
    findings, loaders = check_script(parse("pattern.py", text), text, facts)
    return [*findings, *check_machine(facts, loaders)]


def marked(text: str) -> list[tuple[int, str]]:
    lines = enumerate(text.splitlines(), start=1)
    return [
        (line, code) for line, words in lines if (mark := _MARK.search(words)) for code in mark["codes"].split(", ")
    ]


@pytest.mark.parametrize("path", PATTERNS, ids=lambda path: path.stem)
def test_exactly_the_marked_lines_are_found(path: Path) -> None:
    text = path.read_text()
    found = sorted((finding.line, finding.code) for finding in found_in(text))

    assert found == sorted(marked(text))
    assert bool(found) or not path.name.startswith("bad_")


@pytest.mark.parametrize("path", PATTERNS, ids=lambda path: path.stem)
def test_a_method_may_call_its_own_object_as_it_likes(path: Path) -> None:
    text = re.sub(r"\bself\b", "this", path.read_text())
    findings = found_in(text)

    assert sorted((finding.line, finding.code) for finding in findings) == sorted(marked(text))
    assert not any("self." in finding.reason + finding.change for finding in findings)


def test_every_rule_about_scripts_has_a_pattern() -> None:
    planted = {code for path in PATTERNS for _, code in marked(path.read_text())}

    assert planted == {rule.code for rule in SCRIPT_RULES}


RULES: tuple[Rule[Any], ...] = (*SCRIPT_RULES, *MACHINE_RULES)


@pytest.mark.parametrize("rules", [SCRIPT_RULES, MACHINE_RULES], ids=["scripts", "machine"])
def test_a_code_names_one_rule(rules: tuple[Rule[Any], ...]) -> None:
    codes = [rule.code for rule in rules]

    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("path", sorted(Path(rules.__file__).parent.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_a_rule_module_names_its_codes_first(path: Path) -> None:
    """So that ``grep no-timeout`` leads to the module, and every module is registered."""
    named = set(re.findall(r"``([a-z0-9*-]+)``", (ast.get_docstring(ast.parse(path.read_text())) or "").split(":")[0]))
    registered = {rule.code for rule in RULES} | {"shared-*"}

    assert named
    assert named <= registered


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_every_rule_is_explained_and_documented(rule: Rule[Any]) -> None:
    page = TROUBLESHOOTING.read_text()
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    assert rule.explanation.endswith(".")
    assert rule.section in anchors
    assert f"| `{rule.code}` |" in page


def test_every_finding_says_why_and_what_to_do() -> None:
    for path in PATTERNS:
        for finding in found_in(path.read_text()):
            assert finding.reason.endswith("."), finding
            assert finding.change, finding
            assert all(len(line) <= 76 for line in finding.change.splitlines()), finding
