"""How text is laid out for a person: to the width of the terminal, with colour only where one is."""

from __future__ import annotations

import os
import shutil
import textwrap
from dataclasses import dataclass
from typing import Any, TextIO

from antifreeze.core import clean_block, one_line

_NARROW, _WIDE = 40, 100
_MAX_PARAGRAPH_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class Paper:
    """What is written on: so many columns, with or without colour."""

    width: int = 80
    colour: bool = False

    def bold(self, text: str) -> str:
        """Return a text that stands out."""
        return self._in("1", text)

    def red(self, text: str) -> str:
        """Return a text that alarms."""
        return self._in("1;31", text)

    def yellow(self, text: str) -> str:
        """Return a text that warns."""
        return self._in("1;33", text)

    def green(self, text: str) -> str:
        """Return a text that calms."""
        return self._in("1;32", text)

    def dim(self, text: str) -> str:
        """Return a text that stands back."""
        return self._in("2", text)

    def wrap(self, text: str, first: str = "", others: str = "") -> str:
        """Return a paragraph with a line break at its end, cleaned. Paths and names are never broken."""
        wrapper = textwrap.TextWrapper(self.width, first, others, break_long_words=False, break_on_hyphens=False)
        return wrapper.fill(one_line(text, _MAX_PARAGRAPH_CHARS)) + "\n"

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


def clean_values(values: Any) -> Any:
    """Return values for JSON whose texts are cleaned: a program may print them. Texts of several lines keep these."""
    if isinstance(values, str):
        return str(clean_block(values)) if "\n" in values else one_line(values, _MAX_PARAGRAPH_CHARS)
    if isinstance(values, dict):
        return {name: clean_values(value) for name, value in values.items()}
    return [clean_values(value) for value in values] if isinstance(values, list | tuple) else values


def paper_of(stream: TextIO | None) -> Paper:
    """Return what a stream writes on: a pipe or a file has no colour, and 80 columns unless COLUMNS says otherwise."""
    colour = (
        stream is not None and stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )
    width = min(max(shutil.get_terminal_size((80, 24)).columns, _NARROW), _WIDE)
    return Paper(width, colour)
