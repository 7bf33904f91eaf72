"""Looking into directories: links are followed, cycles are cut, nothing unreadable is passed over in silence."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from antifreeze.core import File, InputError, SourceNotFound

Entry = os.DirEntry[str]


def unreadable(path: str, error: OSError) -> InputError:
    """Return the error for a path that the system refuses to read."""
    reason = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return SourceNotFound(
            f"{path} is a link to nothing or has just vanished",
            hint="remove the link, or restore the file that it points to",
            path=path,
        )
    hint = "check the permissions of the path and the health of the disk or mount"
    return InputError(f"{path} cannot be read: {reason}", hint=hint, path=path)


def scan(folder: str) -> list[Entry]:
    """Return what stands in a directory, in no order."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise unreadable(folder, error) from error


def leads_to_folder(entry: Entry) -> bool:
    """Return whether the entry is a directory or a link to one."""
    try:
        return entry.is_dir()
    except OSError as error:
        # A link to itself is no folder. Anything else may hide data, so it is not passed over.
        if error.errno == errno.ELOOP:
            return False
        raise unreadable(entry.path, error) from error


def folders_below(top: str, enter: Callable[[str], bool]) -> Iterator[tuple[str, list[Entry]]]:
    """Yield ``top`` and each directory below it whose name ``enter`` accepts, with its entries that are no folders.

    A directory that two links lead to is found twice, under two names; one that contains itself is not entered again.
    """
    todo: list[tuple[str, frozenset[tuple[int, int]]]] = [(top, frozenset())]
    while todo:
        folder, above = todo.pop()
        try:
            status = os.stat(folder)  # noqa: PTH116 - a Path per folder would cost more than the call
        except OSError as error:
            raise unreadable(folder, error) from error
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            continue
        below = above | {identity}
        others: list[Entry] = []
        for entry in scan(folder):
            if not leads_to_folder(entry):
                others.append(entry)
            elif enter(entry.name):
                todo.append((entry.path, below))
        yield folder, others


def file_at(path: str, status: os.stat_result) -> File:
    """Return the facts of a regular file.

    A named pipe would make the reader wait for ever, so anything that is no regular file is refused here.
    """
    if not stat.S_ISREG(status.st_mode):
        hint = "only regular files can be read as Parquet"
        raise InputError(f"{path} is neither a file nor a directory", hint=hint, path=path)
    return File(path=path, size=status.st_size, mtime_ns=status.st_mtime_ns)


def file_of(entry: Entry) -> File:
    """Return the facts of the file that a directory entry names."""
    try:
        status = entry.stat()
    except OSError as error:
        raise unreadable(entry.path, error) from error
    return file_at(entry.path, status)
