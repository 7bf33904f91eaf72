"""The item loader that litData users pass; here it only carries their choice of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParquetLoader:
    """Accepted so that code moves over by its import line.

    ``low_memory`` and ``pre_load_chunk`` are accepted and change nothing: rows are always decoded in small pieces,
    which is both the fastest way and the one that needs least memory.
    """

    pre_load_chunk: bool = False
    low_memory: bool = True
    columns: Sequence[str] | None = None
