"""Reads the footer of a Parquet file: rows per group, schema, and the size of each column in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import CorruptFile, SourceNotFound, UnreadableFile, open_regular
from antifreeze.formats._chunks import FooterWalk, GroupIndex
from antifreeze.formats._measure import MAX_CHUNKS_MEASURED, Layout, layout_of, measure

# Nearly all footers fit, and a disk reads this much as fast as one byte.
_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_END_BYTES = 8
# 100,000 column chunks take about 10 MB.
_MAX_FOOTER_BYTES = 128 << 20

_MAX_KEYS = 16

_COPY_HINT = "copy or write the file again, or leave it out"

# Everything that a damaged footer was seen to raise; Arrow raises OSError for thrift that does not parse.
_PARSE_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, LookupError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Footer:
    """The facts of one file; ``nbytes``, ``values`` and ``lengths`` have one entry per field of the schema."""

    group_rows: tuple[int, ...]
    schema: pa.Schema
    """Without metadata, so that equal schemas compare equal."""
    nbytes: tuple[int, ...]
    """Estimated bytes once decoded."""
    values: tuple[int, ...]
    """Leaf values."""
    lengths: tuple[int | None, ...]
    """Leaf values per row if all groups with rows have the same number of them, else None."""


class FooterBytes(NamedTuple):
    """A footer as it is in the file, without its length and the mark at the end."""

    data: bytes
    start: int
    """Where it begins in the file, and where the data ends."""


class KnownLayouts:
    """Layouts of files that were read, for those that follow; used by any number of threads."""

    def __init__(self) -> None:
        self._layouts: list[Layout] = []
        self._by_key: dict[tuple[bytes, bytes], Layout] = {}

    def layout(self, index: GroupIndex) -> Layout:
        """Return the layout of a file. Those with the same bytes for their schema are not parsed again."""
        layout = self._by_key.get(index.schema_key)
        if layout is None:
            file = pq.ParquetFile(pa.BufferReader(index.file_without_groups()))
            layout = layout_of(file.schema_arrow, self._layouts)
            if file.metadata.num_columns != layout.num_leaves:
                found = file.metadata.num_columns
                raise ValueError(f"{found} leaf columns are stored, {layout.num_leaves} are described")
            # A handful: metadata may be another one in every file.
            if len(self._by_key) < _MAX_KEYS:
                self._by_key[index.schema_key] = layout
        return layout


def read_footer(path: str, known: KnownLayouts | None = None) -> Footer:
    """Read the footer of one file.

    ``known`` collects layouts over many calls, from any number of threads; files with equal schemas then share one
    schema object, and compare by identity.
    """
    footer = read_footer_bytes(path)
    with parsing(path):
        index = FooterWalk(footer.data).index(MAX_CHUNKS_MEASURED)
        return _facts((known or KnownLayouts()).layout(index), index)


@contextmanager
def parsing(path: str) -> Iterator[None]:
    """Turn whatever a damaged footer raises into ``CorruptFile``."""
    try:
        yield
    except _PARSE_ERRORS as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        if "ncrypt" in reason:
            raise _encrypted(path) from error
        raise _corrupt(path, f"has a footer that cannot be used: {reason}") from error


def _corrupt(path: str, what: str, hint: str = _COPY_HINT) -> CorruptFile:
    return CorruptFile(f"{path} {what}", hint=hint, file=path, row_group=None)


def _encrypted(path: str) -> CorruptFile:
    return _corrupt(path, "is encrypted", "encrypted Parquet files are not supported; write it without encryption")


def read_footer_bytes(path: str) -> FooterBytes:
    """Return the bytes of a footer, without the marks behind it, which are checked."""
    try:
        handle = open_regular(path)
        try:
            size = os.fstat(handle).st_size
            tail = os.pread(handle, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            head = b"" if tail.endswith(_MAGIC) else os.pread(handle, _END_BYTES, 0)
            _check_marks(path, size, head, tail)
            nbytes = _footer_bytes(tail)
            if nbytes <= len(tail):
                return FooterBytes(tail[-nbytes:-_END_BYTES], size - nbytes)
            return FooterBytes(os.pread(handle, nbytes - _END_BYTES, size - nbytes), size - nbytes)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        hint = "files were removed while they were read; start again"
        raise SourceNotFound(f"{path} has vanished", hint=hint, path=path) from error
    except OSError as error:
        hint = "check the permissions of the file and the health of the disk or mount"
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}", hint=hint, file=path) from error


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def _check_marks(path: str, size: int, head: bytes, tail: bytes) -> None:
    if size == 0:
        raise _corrupt(path, "has zero bytes")
    if tail.endswith(_MAGIC_ENCRYPTED):
        raise _encrypted(path)
    if not tail.endswith(_MAGIC):
        if not head.startswith(_MAGIC):
            hint = "take it out of the folder, or name the files to read by a list or a glob"
            raise _corrupt(path, "is not a Parquet file: it neither begins nor ends as one", hint)
        raise _corrupt(path, "has no footer: it was probably cut off while it was written or copied")
    if size < _END_BYTES + len(_MAGIC):
        raise _corrupt(path, f"is too short for a Parquet file ({size} bytes)")
    if size >= _footer_bytes(tail) > _MAX_FOOTER_BYTES:
        hint = "write the file with fewer columns or row groups"
        claim = f"{_footer_bytes(tail):,} bytes, expected at most {_MAX_FOOTER_BYTES:,}"
        raise _corrupt(path, f"has a footer of {claim}", hint)
    if _footer_bytes(tail) > size:
        raise _corrupt(path, f"claims a footer of {_footer_bytes(tail):,} bytes but has only {size:,}")


def _facts(layout: Layout, index: GroupIndex) -> Footer:
    if index.num_rows != (num_rows := sum(index.group_rows)):
        raise ValueError(f"it claims {index.num_rows:,} rows, and its row groups have {num_rows:,}")
    sizes = measure(layout, index)
    return Footer(
        group_rows=tuple(index.group_rows),
        schema=layout.schema,
        nbytes=tuple(sizes.nbytes.tolist()),
        values=tuple(sizes.values.tolist()),
        lengths=tuple(None if length < 0 else length for length in sizes.lengths.tolist()),
    )
