"""The language of the code: phrases and names that were retired do not come back.

Comments, docstrings and messages use the words of the field. A reader can search for "spawn", "shard" or "resume", but
would not search for the private words that these replaced.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/antifreeze"

PROSE = {
    r"\bst(?:ands?|anding|ood)\b": "is, is at, stalled",
    r"\b(?:go|goes|going|went|gone) on\b": "continue, resume, recover",
    r"\banew\b": "again, or name the action",
    r"\b(?:is|are|was|were|been) told\b": "get, receive, is notified",
    r"\bin words\b": "as text",
    r"\bwho(?:m)?ever\b": "name the actor",
    r"\basks? on\b": "continues to iterate",
    r"\bso many\b": "this many, or name the number",
    r"\bof (?:its|their) own\b": "its own, separate",
    r"\b(?:tell|say)s? whether\b": "Return True if",
    r"\b(?:born|births?|stillbirths?|bury|buried|bears?)\b": "spawned, started, reaped",
    r"\b(?:dies|died)\b": "exits, was killed",
    r"\b(?:crews?|nursery|nurse|keepers?|parcels?|ledgers?|desks?)\b": "pool, fork server, supervisor, payload, table",
    r"\b(?:its|a|the|each|whose|this|worker's) share\b|\bshares of\b": "shard, fraction, part",
    r"\bplaces\b|\b(?:its|this|a|the|that|same|any) place\b": "position, location",
    r"\blets? (?:it |them )?go\b|\bletting go\b": "release",
    r"(?<!-)\b(?:hears?|heard|learns?|learned)\b": "is notified, records, observes",
    r"\bagain and again\b|\bfor ever\b|\bwithout a word\b": "repeatedly, forever, silently",
}
"""Retired phrases in comments, docstrings and messages, and what to say instead."""

NAMES = {
    r"_?MOST\w*|_?most_\w+": "max_, _MAX",
    r"_(?:LOOK|SOON|AWAY|OVER|END)_S": "*_INTERVAL_S, *_GRACE_S, *_TIMEOUT_S",
    r"\w*(?:stillbirth|nursery|keeper|parcel|ledger)\w*": "the words of the field",
}
"""Retired names, and what to use instead."""

KEPT = frozenset({"most_common"})
"""Names of other libraries."""

_IDENTIFIER = re.compile(r"""["']\w+["']""")
"""A string that is a key or a field, not prose."""


def retired_in(path: Path) -> Iterator[str]:
    """Yield each retired phrase or name of a module, with its line and what to say instead."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        kind, text = tokenize.tok_name[token.type], token.string
        found: list[tuple[str, int, str]] = []
        if kind == "NAME" and text not in KEPT:
            found = [(text, 0, instead) for pattern, instead in NAMES.items() if re.fullmatch(pattern, text)]
        elif kind in ("STRING", "COMMENT", "FSTRING_MIDDLE") and not _IDENTIFIER.fullmatch(text):
            for pattern, instead in PROSE.items():
                found += [(m[0], m.start(), instead) for m in re.finditer(pattern, text, re.IGNORECASE)]
        for phrase, start, instead in found:
            line = token.start[0] + text[:start].count("\n")
            yield f"{path.relative_to(ROOT)}:{line}: {phrase!r}, say: {instead}"


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_uses_the_words_of_the_field(path: Path) -> None:
    """A private word is one that no reader can guess, and no search can find."""
    assert list(retired_in(path)) == []


def test_the_rule_can_fail() -> None:
    """A check that cannot fail checks nothing: this module names what it refuses."""
    assert len(list(retired_in(Path(__file__)))) >= 2
