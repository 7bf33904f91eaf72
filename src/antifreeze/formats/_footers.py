"""What the footer of a Parquet file tells: rows per group, schema, and how large each column becomes in memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import CorruptFile, SourceNotFound, UnreadableFile
from antifreeze.formats._chunks import ChunkSizes, chunk_pattern, find_chunks

# Nearly all footers fit, and a disk reads this much as fast as one byte.
_TAIL_BYTES = 64 * 1024
_MAGIC = b"PAR1"
_MAGIC_ENCRYPTED = b"PARE"
_END_BYTES = 8

_COPY_HINT = "copy or write the file again, or leave it out"

# A str or bytes object, beside its characters.
_OBJECT_BYTES = 50
_POINTERS_BYTES = 16
_DECIMAL_BYTES = 8

# Rows or bytes that no file has; sums of many such numbers still fit into 64 bits.
_MOST = 2**48

# Untyped, for the stubs of Arrow narrow types by these questions further than the answers go.
_TYPES: Any = pa.types

# All that a damaged footer was seen to raise; OSError is what Arrow says of a thrift structure that does not parse.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """One column of one file, as in ``Footer``."""

    nbytes: int
    values: int
    length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """How a top-level column is found and measured."""

    pattern: re.Pattern[bytes]
    widths: tuple[int | None, ...]
    """Decoded bytes per value of each leaf; None for strings and binary."""
    is_flat: bool
    """Not nested: as many values as rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layout:
    """A schema and how its columns are measured; files with equal schemas share one."""

    schema: pa.Schema
    columns: tuple[_Column, ...]
    num_leaves: int


def read_footer(path: str, known: list[Layout] | None = None) -> Footer:
    """Read the footer of one file.

    ``known`` collects layouts over many calls, from any number of threads; files with equal schemas then share one
    schema object, and compare by identity.
    """
    tail = _read_tail(path)
    try:
        file = pq.ParquetFile(pa.BufferReader(tail))
        layout = _layout_of(file.schema_arrow, [] if known is None else known)
        return _facts(file.metadata, layout, tail[-_footer_bytes(tail) : -_END_BYTES])
    except _PARSE_ERRORS as error:
        text = str(error).strip().splitlines()
        reason = text[0] if text else type(error).__name__
        if "ncrypt" in reason:
            raise _encrypted(path) from error
        raise _corrupt(path, f"has a footer that does not parse: {reason}") from error


def _corrupt(path: str, what: str, hint: str = _COPY_HINT) -> CorruptFile:
    return CorruptFile(f"{path} {what}", hint=hint, file=path, row_group=None)


def _encrypted(path: str) -> CorruptFile:
    return _corrupt(path, "is encrypted", "encrypted Parquet files are not supported; write it without encryption")


def _read_tail(path: str) -> bytes:
    """Return the last bytes of a file: the whole footer, checked for its marks."""
    try:
        # Non-blocking, for a file that was replaced by a named pipe would be waited for.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size = os.fstat(handle).st_size
            tail = os.pread(handle, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            missing = _missing_bytes(tail, size)
            if missing:
                start = max(0, size - len(tail) - missing)
                tail = os.pread(handle, size - len(tail) - start, start) + tail
            head = b"" if tail.endswith(_MAGIC) else os.pread(handle, _END_BYTES, 0)
        finally:
            os.close(handle)
    except FileNotFoundError as error:
        hint = "files were removed while they were read; start again"
        raise SourceNotFound(f"{path} has vanished", hint=hint, path=path) from error
    except OSError as error:
        hint = "check the permissions of the file and the health of the disk or mount"
        raise UnreadableFile(f"{path} cannot be read: {error.strerror}", hint=hint, file=path) from error
    _check_marks(path, size, head, tail)
    return tail


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES


def _missing_bytes(tail: bytes, size: int) -> int:
    """Return how many bytes of a large footer lie before the tail; 0 if the footer claims more than the file has."""
    if not tail.endswith(_MAGIC) or _footer_bytes(tail) > size:
        return 0
    return max(0, _footer_bytes(tail) - len(tail))


def _check_marks(path: str, size: int, head: bytes, tail: bytes) -> None:
    if size == 0:
        raise _corrupt(path, "has zero bytes")
    if tail.endswith(_MAGIC_ENCRYPTED):
        raise _encrypted(path)
    if not tail.endswith(_MAGIC):
        if not head.startswith(_MAGIC):
            hint = "take it out of the folder, or name the files to read by a list or a glob"
            raise _corrupt(path, f"is not a Parquet file (starts with {head!r})", hint)
        raise _corrupt(path, "has no footer: it was probably cut off while it was written or copied")
    if size < _END_BYTES + len(_MAGIC):
        raise _corrupt(path, f"is too short for a Parquet file ({size} bytes)")
    if _footer_bytes(tail) > len(tail):
        raise _corrupt(path, f"claims a footer of {_footer_bytes(tail):,} bytes but has only {size:,}")


def _layout_of(schema: pa.Schema, known: list[Layout]) -> Layout:
    for layout in known:
        if layout.schema.equals(schema):
            return layout
    columns: list[_Column] = []
    for field in schema:
        flat = _is_flat(field.type)
        widths = tuple(_leaf_widths(field.type))
        columns.append(_Column(pattern=chunk_pattern(field.name, flat), widths=widths, is_flat=flat))
    num_leaves = sum(len(column.widths) for column in columns)
    layout = Layout(schema=schema.remove_metadata(), columns=tuple(columns), num_leaves=num_leaves)
    # A handful at most: files that all differ must not be compared with each other.
    if len(known) < 8:
        known.append(layout)
    return layout


def _is_flat(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_flat(kind.storage_type)
    return not _TYPES.is_nested(kind)


def _leaf_widths(kind: Any) -> list[int | None]:
    """Return the decoded width of each leaf below a type, in the order in which Parquet stores them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_widths(kind.storage_type)
    if _TYPES.is_dictionary(kind):
        return _leaf_widths(kind.value_type)
    if _TYPES.is_map(kind):
        return _leaf_widths(kind.key_type) + _leaf_widths(kind.item_type)
    if _TYPES.is_struct(kind):
        return [width for field in kind for width in _leaf_widths(field.type)]
    if _TYPES.is_nested(kind):
        return _leaf_widths(kind.value_type)
    if _TYPES.is_boolean(kind) or _TYPES.is_null(kind):
        return [1]
    if _TYPES.is_decimal(kind):
        return [_DECIMAL_BYTES]
    if _TYPES.is_primitive(kind):
        return [kind.bit_width // 8]
    return [None]


def _facts(metadata: Any, layout: Layout, footer: bytes) -> Footer:
    if metadata.num_columns != layout.num_leaves:
        raise ValueError(f"{metadata.num_columns} leaf columns are stored, {layout.num_leaves} are described")
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    group_rows = tuple(group.num_rows for group in groups)
    sizes = tuple(group.total_byte_size for group in groups)
    if any(not 0 <= number <= _MOST for number in group_rows + sizes):
        raise ValueError("a row group claims an impossible number of rows or bytes")
    total = sum(group_rows)
    facts: list[_Facts] = []
    for column in layout.columns:
        width = column.widths[0]
        if not total:
            facts.append(_Facts(nbytes=0, values=0, length=None))
        elif column.is_flat and width is not None:
            # Known without a look at each chunk, which makes wide tables cheap.
            facts.append(_Facts(nbytes=total * width, values=total, length=1))
        else:
            chunks = find_chunks(footer, column.pattern, len(groups) * len(column.widths))
            facts.append(_measured(column, group_rows, chunks) or _unknown(total, sum(sizes)))
    return Footer(
        group_rows=group_rows,
        schema=layout.schema,
        nbytes=tuple(fact.nbytes for fact in facts),
        values=tuple(fact.values for fact in facts),
        lengths=tuple(fact.length for fact in facts),
    )


def _measured(column: _Column, group_rows: tuple[int, ...], chunks: list[ChunkSizes] | None) -> _Facts | None:
    """Add up the chunks of a column; None if they are not known or cannot be true."""
    if chunks is None:
        return None
    nbytes = total = 0
    lengths: set[int | None] = set()
    leaves = len(column.widths)
    for group, rows in enumerate(group_rows):
        in_group = 0
        for chunk, width in zip(chunks[group * leaves : (group + 1) * leaves], column.widths, strict=True):
            count = chunk.num_values
            if max(count, chunk.uncompressed) > _MOST or count < rows or (column.is_flat and count != rows):
                return None
            in_group += count
            if width is None:
                nbytes += max(chunk.uncompressed, count * _POINTERS_BYTES) + count * _OBJECT_BYTES
            else:
                nbytes += count * width
        total += in_group
        if rows:
            lengths.add(None if in_group % rows else in_group // rows)
    return _Facts(nbytes=nbytes, values=total, length=lengths.pop() if len(lengths) == 1 else None)


def _unknown(rows: int, nbytes: int) -> _Facts:
    """Return a cautious guess: the column is all that the file holds, one byte per value."""
    objects = rows * (_OBJECT_BYTES + _POINTERS_BYTES)
    return _Facts(nbytes=nbytes + objects, values=max(rows, nbytes), length=None)
