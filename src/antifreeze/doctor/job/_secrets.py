"""What of a command line may be shown. Environments are never shown at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

HIDDEN = "[hidden]"
_MOST_WORDS, _MOST_LETTERS = 40, 200
_SECRET = re.compile(
    r"(?i)(?:^|[-_.])(?:pass(?:word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credential\w*|auth(?!or)\w*|"
    r"bearer|cookie|signature|session|key|pwd|dsn)(?:$|[-_.\d])"
    r"|\w(?:password|passwd|secret|token|apikey|accesskey)$"  # PGPASSWORD, --hfToken
)
_NAMED = re.compile(r"([+~]{0,2}--?[\w.-]+|[+~]{0,2}[\w./@-]+)=(.*)", re.DOTALL)  # with the marks that Hydra knows
_INSIDE = re.compile(
    r"(?i)([\w.-]*(?:password|passwd|secret|token|api[-_]?key|access[-_]?key|[-_](?:key|pwd))[\"']?\s*[:=]\s*[\"']?)"
    r"[^\s,;&\"'})]+"
)
_HEADER = re.compile(r"(?i)\b((?:authorization|cookie|x-[\w-]*(?:key|token)):\s*|(?:bearer|basic)\s+)\S.*")
_IN_ADDRESS = re.compile(r"(\w[\w+.-]*://)[^/@\s]+@")
_QUERY = re.compile(
    r"([?&][\w.-]*(?:token|key|sig\w*|secret|credential\w*|pass\w*|auth\w*)[\w.-]*=)[^&\s]+", re.IGNORECASE
)
_KNOWN = re.compile(
    r"(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|eyJ)[\w.-]{8,}"  # forms that services give out
)
_LONG = re.compile(r"[A-Za-z0-9+/_-]{28,}=*")
_AWS = re.compile(r"[A-Za-z0-9+][A-Za-z0-9+/]{39}")
_HEX = re.compile(r"[0-9a-f]{32,}")
_RANDOM_SHARE = 0.34
"""Of chance, two thirds of the letters differ in kind from the one before; of a name in words, one third or less."""
_PROGRAM = re.compile(r"-[A-Za-z]*c")
_PLAIN = re.compile(r"[\w./@:=+-]*")


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command line with what looks like a secret taken out."""
    shown: list[str] = []
    hide_next = False
    for i, word in enumerate(words[:_MOST_WORDS]):
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        hide_next = word.startswith("-") and "=" not in word and bool(_SECRET.search(word))
        is_program = i > 0 and bool(_PROGRAM.fullmatch(words[i - 1])) and not _PLAIN.fullmatch(word)
        if is_program and not word.startswith("from multiprocessing."):
            word = "..."  # a program in the command line may hold anything
        shown.append(clean(word))
    if len(words) > _MOST_WORDS:
        shown.append("...")
    return tuple(shown)


def clean(text: str) -> str:
    """Return a word without what looks like a secret."""
    named = _NAMED.fullmatch(text)
    if named and _SECRET.search(named[1]):
        return f"{named[1]}={HIDDEN}"
    text = _IN_ADDRESS.sub(rf"\1{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _INSIDE.sub(rf"\1{HIDDEN}", text)
    text = _KNOWN.sub(HIDDEN, text)
    if "/" not in text or _AWS.fullmatch(text):  # a path may be long and look like chance
        text = _LONG.sub(lambda found: HIDDEN if _is_chance(found[0]) else found[0], text)
        text = _HEX.sub(HIDDEN, text)
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."


def _is_chance(text: str) -> bool:
    """Whether capitals, small letters and digits follow each other as they do in no name."""
    kinds = ["A" if c.isupper() else "a" if c.islower() else "0" for c in text if c.isalnum()]
    changes = sum(a != b for a, b in pairwise(kinds))
    return {"A", "a", "0"} <= set(kinds) and changes > _RANDOM_SHARE * (len(kinds) - 1)
