"""Parquet row groups, decoded piece by piece."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from antifreeze.core import CorruptFile, DataError, UnreadableFile

# Tried: memory-mapping saves the copy out of the page cache (about 7 % of the decode), but a file that is truncated
# while it is mapped kills the process with SIGBUS, and no error message survives that.
# Tried: reading a column chunk whole, as pyarrow does by default. It costs page faults, and every open fragment then
# holds its compressed data in memory.
_BUFFER = 256 * 1024


@functools.lru_cache(maxsize=64)
def _metadata(path: str, size: int, mtime_ns: int) -> Any:  # noqa: ARG001  (size and time are the cache's key)
    """Return the parsed footer; parsing it anew for each of a file's many row groups would cost more than reading."""
    return pq.read_metadata(path)


class Parquet:
    """Reads Parquet files. One fragment is one row group."""

    def open(self, path: str, group: int, columns: Sequence[str], piece_rows: int) -> ParquetFragment:
        """Open a row group; nothing is decoded yet."""
        try:
            status = Path(path).stat()
            metadata = _metadata(path, status.st_size, status.st_mtime_ns)
            file = pq.ParquetFile(
                path, metadata=metadata, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            )
        except (OSError, pa.ArrowException) as error:
            raise _failed(path, group, 0, error) from error
        if group >= metadata.num_row_groups:
            raise _corrupt(path, group, 0, f"the file has only {metadata.num_row_groups} row groups")
        return ParquetFragment(file, path, group, tuple(columns), piece_rows)


class ParquetFragment:
    """One opened row group."""

    def __init__(self, file: Any, path: str, group: int, columns: tuple[str, ...], piece_rows: int) -> None:
        self._file, self._path, self._group = file, path, group
        self._columns, self._piece_rows = columns, piece_rows

    def pieces(self) -> Iterator[Any]:
        """Yield the rows from front to back as record batches."""
        row = 0
        # ``use_threads=False``: the decoder runs in the calling thread and nowhere else, so that our threads are the
        # only ones, and a limit on cores means what it says.
        options = {"columns": list(self._columns), "use_threads": False, "row_groups": [self._group]}
        try:
            for batch in self._file.iter_batches(self._piece_rows, **options):
                yield batch.select(self._columns) if batch.schema.names != list(self._columns) else batch
                row += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise _failed(self._path, self._group, row, error) from error
        expected = self._file.metadata.row_group(self._group).num_rows
        if row != expected:
            reason = f"its footer promises {expected} rows and its pages hold {row}"
            raise _corrupt(self._path, self._group, row, reason)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _failed(path: str, group: int, row: int, error: Exception) -> DataError:
    """Tell a damaged file from one that the system does not give: only the latter has a system's error number."""
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
