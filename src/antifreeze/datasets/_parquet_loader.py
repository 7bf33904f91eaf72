"""The item loader that litData users pass; here it only carries their choice of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParquetLoader:
    """The item loader of litData, accepted so that code can be migrated by changing its imports.

    Rows are always decoded in small pieces, which is both the fastest way and the one that needs the least memory.
    """

    pre_load_chunk: bool = False
    """No effect."""
    low_memory: bool = True
    """No effect."""
    columns: Sequence[str] | None = None
    """Columns to read, unless the dataset has an argument ``columns``."""
