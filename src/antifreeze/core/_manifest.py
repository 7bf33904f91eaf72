"""What exists: the files of a source and the fragments that they are read in."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file as it was when it was indexed."""

    path: str
    """Relative to the root of the source, with forward slashes; absolute if there is no common root."""
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """Statistics of one top-level column, from the footers of all files."""

    name: str
    nbytes: int
    """Estimated bytes once decoded. An estimate: footers cannot be trusted, so nothing is sized by it alone."""
    values: int
    """Number of leaf values; with one leaf and equal list lengths this is rows x length."""
    length: int | None
    """Leaf values per row if this number is the same in every row group, else None."""


def _longs() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """All fragments of a source, in file order, then row-group order.

    The per-fragment facts are arrays, not objects: a source may have a million fragments.
    """

    files: tuple[File, ...]
    schema: bytes
    """The Arrow schema of the columns that all files share, in Arrow's IPC form."""
    columns: tuple[ColumnFacts, ...]
    fragment_file: array[int] = field(default_factory=_longs)
    """Index into ``files``."""
    fragment_group: array[int] = field(default_factory=_longs)
    """Row group within the file."""
    fragment_rows: array[int] = field(default_factory=_longs)
    differences: tuple[Mapping[str, str], ...] = ()
    """How files differ from the model in columns that they do not all share: one text per column. Files that differ in
    the same way share an entry."""
    file_difference: array[int] = field(default_factory=_longs)
    """Index into ``differences`` for each file, -1 for one that is like the model; empty if all files agree."""
    model: int = 0
    """The file that others are compared with."""

    @property
    def num_fragments(self) -> int:
        """Row groups over all files; groups without rows are left out."""
        return len(self.fragment_rows)

    @property
    def num_rows(self) -> int:
        """Rows over all files."""
        return sum(self.fragment_rows)
