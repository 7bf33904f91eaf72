"""What a source has, and the extension points that read it.

Nothing is inherited; ``antifreeze.testing`` has the suite that each must pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

_MIN_OPEN_NBYTES, _MIN_PIECE_NBYTES, _MIN_ROW_NBYTES = 32 << 20, 1 << 20, 8 << 20
_MAX_HEAVY_NBYTES = 256 << 20


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much memory reading one fragment may take, whatever the file claims or holds."""

    open_nbytes: int
    """What a fragment may hold while it is open: its pages and dictionaries."""
    piece_nbytes: int
    """What the rows of a piece may take at worst. A piece has at least one row."""
    heavy_nbytes: int
    """What they should take, where rows can really be that large."""
    row_nbytes: int
    """What a single row may take."""
    memory_limit: int
    """What all of these follow from, for messages."""

    @classmethod
    def of(cls, memory_limit: int, threads: int = 1) -> ReadLimits:
        """Return what one of several open fragments may take of a loader's ``memory_limit``.

        Small limits have a floor: ordinary pages must fit, and what a process takes beside data is more than that.
        """
        piece_nbytes = max(memory_limit // (2 * max(threads, 2)), _MIN_PIECE_NBYTES)
        heavy_nbytes = min(piece_nbytes, _MAX_HEAVY_NBYTES // max(threads, 2))
        return cls(
            open_nbytes=max(memory_limit * 3 // 4, _MIN_OPEN_NBYTES),
            piece_nbytes=piece_nbytes,
            heavy_nbytes=heavy_nbytes,
            row_nbytes=max(memory_limit // 8, piece_nbytes, _MIN_ROW_NBYTES),
            memory_limit=memory_limit,
        )


class Fragment(Protocol):
    """One opened fragment. Used by one thread at a time, though not always by the same one."""

    nbytes: int
    """What it holds while it is being read, at most."""
    num_rows: int
    file_rows: int
    """Rows of its whole file."""
    schema: Any
    """Arrow schema of the file."""

    def pieces(self) -> Iterator[Any]:
        """Yield the rows from front to back as Arrow record batches that share no memory with each other.

        Raises ``CorruptFile`` at the first piece that does not decode and names the rows; what came before is good.
        """
        ...

    def close(self) -> None:
        """Free what is held. May be called twice, and before the end."""
        ...


class Format(Protocol):
    """A kind of file that can be read in fragments."""

    def open(self, path: str, group: int, columns: Sequence[str], piece_rows: int, limits: ReadLimits) -> Fragment:
        """Open a fragment for the given columns, to be decoded at most ``piece_rows`` rows at a time.

        Called in a decoder thread, once for each fragment and epoch. Allocates nothing that the file merely claims.
        Raises ``CorruptFile``, and ``TooLarge`` if a page, or a single row, does not fit in the limits.
        """
        ...
