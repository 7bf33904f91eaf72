"""Facts become text here: one line, of bounded length, without characters that steer a terminal or forge a line.

Names of files, columns, classes, functions, threads and processes, messages of other people's exceptions, and whatever
was read from a folder are chosen by others. Three properties hold for everything that passes through this module:

- No control character, ANSI escape, lone surrogate, bidirectional control, line or paragraph separator or invisible
  format character is left: each is written as an escape that a person can see, such as ``\\x1b`` or ``\\u202e``.
  Letters, marks, emoji and spaces of every script stay.
- The length is bounded. What was cut is said, with its number of characters; both ends are kept, since the end of a
  path says most.
- Nothing that looks like a secret is left (see ``_redaction``).

Cleaning is idempotent: a text that was cleaned may be put into another one that is cleaned again. Backslashes are left
alone for that reason, so ``\\x1b`` in a cleaned text may also have been written by hand. Programs use the facts, not
the text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from antifreeze.core._redaction import redact

MAX_CHARS = 500
"""For a name or another fact, unless the caller sets another limit."""
MAX_BLOCK_LINES = 400
MAX_BLOCK_CHARS = 40_000
_JOINERS = "\u200c\u200d"  # inside of emoji, and of words in Persian and Indic scripts
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_WINDOW_CHARS = 2_000
"""Secrets are looked for in this much more than is shown, so that none is cut in two and shown by half."""


class Lines(str):
    """Several lines that were cleaned one by one: the breaks between them are ours, and stay."""

    __slots__ = ()


def one_line(text: object, max_chars: int = MAX_CHARS) -> str:
    """Return a fact as text on one line: cleaned, without secrets, and of at most ``max_chars`` characters.

    Args:
        text: the fact; anything but a text is rendered with ``str``, which may call code of its class.
        max_chars: the largest number of characters.

    Returns:
        The same text if there is nothing to clean.
    """
    whole = text if type(text) is str else _rendered(text)
    # Order: secrets first, for an escape in the middle of a word would hide it from the redactor.
    return _cut(_visible(_redacted(whole, max_chars)), max_chars, len(whole))


def clean_lines(lines: Iterable[object], max_chars: int = MAX_CHARS, max_lines: int = 100) -> list[str]:
    """Return several facts, each on one line; after ``max_lines`` of them their number."""
    given = list(lines)
    shown = [one_line(line, max_chars) for line in given[:max_lines]]
    return shown if len(given) <= max_lines else [*shown, f"... and {len(given) - max_lines:,} more lines"]


def indented(lines: Iterable[object], by: str = "    ") -> Lines:
    """Return lines below a message, each after a line break of ours; nothing if there are none."""
    return Lines("".join(f"\n{by}{line}" for line in clean_lines(lines)))


def clean_block(text: str, max_chars: int = MAX_BLOCK_CHARS) -> Lines:
    """Return a text that has lines by its nature, such as a traceback or a diff: line breaks and tabs stay."""
    whole = _redacted(text, max_chars)
    rows = whole.split("\n")
    if len(rows) > MAX_BLOCK_LINES:
        left = len(rows) - MAX_BLOCK_LINES
        end = MAX_BLOCK_LINES // 4
        rows = [*rows[: MAX_BLOCK_LINES - end], f"... ({left:,} lines left out) ...", *rows[-end:]]
    # A carriage return before a line break does nothing to a terminal, and a diff of such a file needs it.
    ends = ["\r" if row.endswith("\r") else "" for row in rows[:-1]] + [""]
    kept = (row.removesuffix(end) for row, end in zip(rows, ends, strict=True))
    shown = "\n".join("\t".join(map(_visible, row.split("\t"))) + end for row, end in zip(kept, ends, strict=True))
    return Lines(_cut(shown, max_chars, len(text)))


def is_clean(text: str) -> bool:
    """True if a text has no character that ``one_line`` would replace."""
    return text.isprintable() or _visible(text) == text


def _rendered(fact: object) -> str:
    if isinstance(fact, str):  # a subclass may render itself as anything
        return str.__str__(fact)
    try:
        return str(fact)
    except Exception:  # noqa: BLE001  border: the class may be the user's
        return f"({type(fact).__name__} that cannot be printed)"


def _redacted(text: str, max_chars: int) -> str:
    """Return a text without secrets; of one that will be cut, only what may be shown, and some more."""
    window = 2 * max_chars + _WINDOW_CHARS
    if len(text) <= 2 * window:
        return redact(text)
    return f"{redact(text[:window])}{redact(text[-window:])}"


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(c: str) -> str:
    if c in _JOINERS or unicodedata.category(c) == "Zs":
        return c
    code = ord(c)
    if "\U0001f000" <= c <= "\U0001faff":  # an emoji that is younger than this Python
        return c
    if code < 0x100:
        return _SHORT.get(c, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str, max_chars: int, whole: int) -> str:
    """Return a text or its two ends; ``whole`` is how long it was before it was cleaned."""
    if len(text) <= max_chars:
        return text
    mark = f" ... ({max(whole, len(text)) - max_chars:,} characters cut) ... "
    end = max(0, max_chars - len(mark)) // 4
    head = max(0, max_chars - len(mark) - end)
    return f"{text[:head]}{mark}{text[len(text) - end :]}"
