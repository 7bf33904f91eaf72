"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word closest to a mistyped one, or nothing if none is close."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)), "")
