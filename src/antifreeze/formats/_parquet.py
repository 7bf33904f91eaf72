"""Parquet row groups, decoded piece by piece, with memory that is bounded whatever a file claims or holds."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import (
    AntifreezeError,
    CorruptFile,
    DataError,
    ManifestError,
    ReadLimits,
    TooLarge,
    UnreadableFile,
    open_regular,
)
from antifreeze.formats._footers import Contents, read_contents
from antifreeze.formats._weights import LeafPages, TooHeavy, open_nbytes, rows_at_a_time

# Tried: memory-mapping saves the copy out of the page cache (about 7 % of the decode), but a file that is truncated
# while it is mapped kills the process with SIGBUS, and no error message survives that.
# Tried: reading a column chunk whole, as pyarrow does by default. It costs page faults, and every open fragment then
# holds its compressed data in memory. Reading it in parts, Arrow allocates what a page header claims: see ``_pages``.
_BUFFER = 256 * 1024


@functools.lru_cache(maxsize=64)
def _contents(path: str, size: int, mtime_ns: int) -> Contents:  # noqa: ARG001  (size and time are the cache's key)
    """Return the parsed footer; parsing it for each of a file's many row groups would cost more than reading."""
    return read_contents(path)


class Parquet:
    """Reads Parquet files. One fragment is one row group."""

    def open(
        self, path: str, group: int, columns: Sequence[str], piece_rows: int, limits: ReadLimits
    ) -> ParquetFragment:
        """Open a row group. Nothing is decoded yet, and what its pages claim is checked."""
        try:
            status = Path(path).stat()
            contents = _contents(path, status.st_size, status.st_mtime_ns)
            if group >= len(contents.group_rows):
                # The file is as large and as old as the manifest says, so that it was not replaced.
                raise ManifestError(
                    f"the manifest names row group {group} of {path}, which has {len(contents.group_rows)} row groups",
                    hint="run index_parquet_dataset again, or delete the manifest: footers are then read when a "
                    "dataset is opened",
                    path=path,
                )
            nbytes, piece_rows = _weighed(path, contents, group, columns, piece_rows, limits)
            metadata, number = contents.metadata(group)
            file = pq.ParquetFile(
                path, metadata=metadata, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            )
        except AntifreezeError:  # some of these are errors of the system, too
            raise
        except TooHeavy as error:
            raise _too_large(path, group, error, limits) from error
        except (OSError, pa.ArrowException) as error:
            raise _failed(path, group, 0, error) from error
        return ParquetFragment(file, number, contents, path, group, tuple(columns), piece_rows, nbytes)


def _weighed(
    path: str, contents: Contents, group: int, columns: Sequence[str], piece_rows: int, limits: ReadLimits
) -> tuple[int, int]:
    """Return what a row group holds while it is read, and how many rows to decode at a time."""
    handle = open_regular(path)

    def read(offset: int, size: int) -> bytes:
        return os.pread(handle, size, offset)

    try:
        leaves: list[LeafPages] = []
        for leaf, chunk in contents.chunks(group, columns):
            try:
                leaves.append(LeafPages(leaf, chunk, contents.data_stop, read))
            except ValueError as error:
                raise ValueError(f'column "{leaf.name}": {error}') from error
        return open_nbytes(leaves, limits), rows_at_a_time(leaves, piece_rows, limits)
    except ValueError as error:
        raise _corrupt(path, group, 0, error) from error
    finally:
        os.close(handle)


class ParquetFragment:
    """One opened row group."""

    def __init__(
        self,
        file: Any,
        number: int,
        contents: Contents,
        path: str,
        group: int,
        columns: tuple[str, ...],
        piece_rows: int,
        nbytes: int,
    ) -> None:
        self._file, self._number, self._path, self._group = file, number, path, group
        self._columns, self._piece_rows = columns, piece_rows
        self.nbytes = nbytes
        self.num_rows, self.file_rows = contents.group_rows[group], contents.num_rows
        self.schema = contents.schema

    def pieces(self) -> Iterator[Any]:
        """Yield the rows from front to back as record batches."""
        row = 0
        # ``use_threads=False``: the decoder runs in the calling thread and nowhere else, so that our threads are the
        # only ones, and a limit on cores is respected.
        options = {"columns": list(self._columns), "use_threads": False, "row_groups": [self._number]}
        try:
            for batch in self._file.iter_batches(self._piece_rows, **options):
                for column in batch.columns:
                    if pa.types.is_dictionary(column.type):  # Arrow does not check that its indices have an entry
                        column.validate(full=True)
                yield batch.select(self._columns) if batch.schema.names != list(self._columns) else batch
                row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, self._group, row, error) from error
        if row != self.num_rows:
            reason = f"its footer promises {self.num_rows} rows and its pages hold {row}"
            raise _corrupt(self._path, self._group, row, reason)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _failed(path: str, group: int, row: int, error: Exception) -> DataError:
    """Distinguish a damaged file from one that the system cannot read: only the latter has an errno."""
    number = getattr(error, "errno", None)
    if not number:
        return _corrupt(path, group, row, error)
    return UnreadableFile(
        f"{path}, row group {group} cannot be read: {os.strerror(number)}",
        hint="check the file's permissions, the limit on open files (ulimit -n), and the health of the disk or mount",
        file=path,
        row_group=group,
        row=row,
        errno=number,
    )


def _corrupt(path: str, group: int, row: int, reason: object) -> CorruptFile:
    return CorruptFile(
        f"{path}, row group {group}: the rows from {row} on cannot be decoded: {reason}",
        hint="the file is damaged: restore it from its origin, or leave it out; rows before these were delivered",
        file=path,
        row_group=group,
        row=row,
    )


def _too_large(path: str, group: int, error: TooHeavy, limits: ReadLimits) -> TooLarge:
    return TooLarge(
        f"{path}, row group {group}: {error.what} may take {error.nbytes / 1e6:,.0f} MB, which does not fit in "
        f"memory_limit={limits.memory_limit / 1e6:,.0f} MB",
        hint="raise memory_limit, leave the column out with columns=[...], or write smaller values or pages",
        file=path,
        row_group=group,
        row=error.row,
        nbytes=error.nbytes,
        limit=limits.memory_limit,
    )
