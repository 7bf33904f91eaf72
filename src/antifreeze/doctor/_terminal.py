"""Text for a terminal: wrapped to its width, in colour only where it supports that."""

from __future__ import annotations

import difflib
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, TextIO

from antifreeze.core import clean_block, one_line

_MIN_WIDTH, _MAX_WIDTH = 40, 100
_MAX_PARAGRAPH_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Paper:
    """The output: its number of columns, with or without colour."""

    width: int = 80
    colour: bool = False

    def wrap(self, text: str, first: str = "", others: str = "") -> str:
        """Return a cleaned, wrapped paragraph with a line break at its end. Paths and names are never broken."""
        wrapper = textwrap.TextWrapper(self.width, first, others, break_long_words=False, break_on_hyphens=False)
        return wrapper.fill(one_line(text, _MAX_PARAGRAPH_CHARS)) + "\n"

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    bold = partialmethod(_in, "1")
    dim = partialmethod(_in, "2")
    red = partialmethod(_in, "1;31")
    green = partialmethod(_in, "1;32")
    yellow = partialmethod(_in, "1;33")


def map_texts(values: Any, change: Callable[[str], str]) -> Any:
    """Return values for JSON with each text changed, except the keys."""
    if isinstance(values, str):
        return change(values)
    if isinstance(values, dict):
        return {name: map_texts(value, change) for name, value in values.items()}
    return [map_texts(value, change) for value in values] if isinstance(values, list | tuple) else values


def clean_values(values: Any) -> Any:
    """Return values for JSON with cleaned texts, since a program may print them. Line breaks stay."""
    return map_texts(
        values, lambda text: str(clean_block(text)) if "\n" in text else one_line(text, _MAX_PARAGRAPH_CHARS)
    )


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word closest to a mistyped one, or nothing if none is close."""
    return next(iter(difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)), "")


def paper_of(stream: TextIO | None) -> Paper:
    """Return the output of a stream: a pipe or a file has no colour, and 80 columns unless COLUMNS is set."""
    colour = (
        stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )
    width = min(max(shutil.get_terminal_size((80, 24)).columns, _MIN_WIDTH), _MAX_WIDTH)
    return Paper(width, colour)
