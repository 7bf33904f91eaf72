"""Pages are written in the words of the field: a few phrases that once were everywhere must not come back.

Only prose is looked at: code blocks and text in backticks repeat what programs print.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RETIRED = {
    r"stands? still|stood still|standstill": "is stuck, stalled, hangs",
    r"\bgoes on\b|\bgo on\b": "continues, resumes",
    r"\banew\b": "again, from the beginning",
    r"\bwhoever\b|\bwhomever\b": "name the actor",
    r"\bso many\b": "give the number",
    r"\b(workers?|one|it) (is|are|was|were) born\b": "is spawned, starts",
    r"\bfor ever\b": "forever",
    r"\btell whether\b": "shows whether, True if",
    r"\bin words\b": "as text",
    r"\bof its own\b|\bof your own\b|\bof their own\b": "its own, separate",
    r"\b(colour|behaviour|neighbour|favour|honour|recognise|initialise|summarise)": "American spelling",
}


def prose_of(text: str) -> str:
    """Return a page without code, with the line breaks that it has."""
    blank = re.sub(r"^```.*?^```$", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]+`", "", blank)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_no_retired_phrase(page: Path) -> None:
    """The message says what to write instead."""
    text = prose_of(page.read_text())
    found = [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {' '.join(match[0].split())!r}: say {instead!r}"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE)
    ]

    assert found == []


def test_the_test_can_fail() -> None:
    """A check that cannot fail checks nothing."""
    assert "goes on" not in prose_of("`goes on`\n```text\ngoes on\n```\n")
    assert re.search(next(iter(RETIRED)), "it stands still")
