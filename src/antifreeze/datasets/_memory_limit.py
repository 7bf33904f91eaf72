"""How much memory decoded rows may take."""

from __future__ import annotations

import os
import re

from antifreeze.core import ConfigError
from antifreeze.diagnosis import memory_limits

SHARE = 8
"""The default limit is one part in this many of what the machine, or the container, has."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)
_LEAST = 10**6


def parse_limit(limit: int | str | None, name: str = "memory_limit") -> int:
    """Return a number of bytes for ``memory_limit=``: bytes, text such as ``"256MB"`` or ``"1GiB"``, or the default."""
    if limit is None:
        return max(machine_memory() // SHARE, 64 << 20)
    nbytes = -1
    if isinstance(limit, int) and not isinstance(limit, bool):
        nbytes = limit
    elif isinstance(limit, str) and (match := _SIZE.fullmatch(limit)):
        nbytes = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if nbytes < _LEAST:
        raise ConfigError(
            f"{name}={limit!r} is not an amount of memory of at least 1 MB",
            hint='give bytes, or text such as "256MB" or "2GiB"',
            argument=name,
        )
    return nbytes


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or less in a container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *memory_limits()])
