"""Regular expressions that are compiled at their first use.

The redactor has some thirty of them, which take 8 ms to compile. Every process that imports the package would pay for
them, the fork server first, and most never render an error.

# Tried: importing the redactor when the first error is rendered. An error about too many open files then could not be
# rendered, because importing opens a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Match = re.Match[str]


class Pattern:
    """The part of ``re.Pattern`` that is used here. Any thread may use it: compiling twice does no harm."""

    __slots__ = ("_compiled", "_flags", "_text")

    def __init__(self, text: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self._text, self._flags = text, flags
        self._compiled: re.Pattern[str] | None = None

    @property
    def compiled(self) -> re.Pattern[str]:
        """The pattern itself."""
        if self._compiled is None:
            self._compiled = re.compile(self._text, self._flags)
        return self._compiled

    def search(self, text: str) -> Match | None:
        """Return the first match anywhere in a text."""
        return self.compiled.search(text)

    def match(self, text: str, at: int = 0) -> Match | None:
        """Return the match that starts at a position."""
        return self.compiled.match(text, at)

    def fullmatch(self, text: str) -> Match | None:
        """Return the match of a whole text."""
        return self.compiled.fullmatch(text)

    def finditer(self, text: str) -> Iterator[Match]:
        """Yield all matches."""
        return self.compiled.finditer(text)

    def split(self, text: str) -> list[str]:
        """Return what is between the matches."""
        return list(self.compiled.split(text))

    def sub(self, new: str | Callable[[Match], str], text: str) -> str:
        """Return a text with every match replaced."""
        return self.compiled.sub(new, text)
