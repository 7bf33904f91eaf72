"""Numbers in text that others have written: environment variables, files of the kernel, arguments."""

from __future__ import annotations

import math

_MAX_DIGITS = 19
"""No number that the kernel or a launcher writes has more; Python refuses to read one of thousands."""


def natural(text: str) -> int | None:
    """Return the number that a text of ASCII digits is, blanks around it aside; None for any other text.

    Not ``str.isdigit``: it is true for ``"²"``, which is no number, and for digits of every script.
    """
    text = text.strip()
    return int(text) if 0 < len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


def seconds(text: str, default: float) -> float:
    """Return the number of seconds that a text is, or a default if it is none."""
    try:
        found = float(text)
    except ValueError:
        return default
    return found if 0 <= found < math.inf else default
