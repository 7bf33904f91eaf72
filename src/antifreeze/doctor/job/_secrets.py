"""What of a command line may be shown. Environments are never shown at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "[hidden]"
_MOST_WORDS, _MOST_LETTERS = 40, 200
_SECRET = re.compile(
    r"(?i)(?:^|[-_.])(?:pass(?:word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credential\w*|auth\w*|"
    r"bearer|cookie|signature|session|key|pwd|dsn)(?:$|[-_.\d])"
)
_NAMED = re.compile(r"(--?[\w.-]+|[\w.-]+)=(.*)", re.DOTALL)
_IN_ADDRESS = re.compile(r"(\w[\w+.-]*://)[^/@\s]+@")
_QUERY = re.compile(
    r"([?&][\w.-]*(?:token|key|sig\w*|secret|credential\w*|pass\w*|auth\w*)[\w.-]*=)[^&\s]+", re.IGNORECASE
)
_KNOWN = re.compile(
    r"(?:sk-|hf_|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|eyJ)[\w.-]{8,}"  # forms that services give out
)
_RANDOM = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[a-z])(?=[^\s]*[A-Z])[A-Za-z0-9+=_-]{28,}|[0-9a-f]{32,}")


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
        if i and words[i - 1] == "-c" and not word.startswith("from multiprocessing."):
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
    text = _KNOWN.sub(HIDDEN, text)
    if "/" not in text:  # a path may be long and look like chance
        text = _RANDOM.sub(HIDDEN, text)
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."
