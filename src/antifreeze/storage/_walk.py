"""Walks directories: links are followed, each directory is entered once, and unreadable entries are errors.

Patterns such as ``data/*/part-*.parquet`` and ``data/**/*.parquet`` are walked in the same way.

Tried: ``glob.glob``. Its ``**`` follows links in circles, forty levels deep and, with two such links, 2**40 ways.
"""

from __future__ import annotations

import errno
import fnmatch
import heapq
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator

from antifreeze.core import File, InputError, SourceNotFound

Entry = os.DirEntry[str]
Identity = tuple[int, int]
_ANY_DEPTH = "**"
_MAGIC = re.compile(r"[*?[]")


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
    """Return the entries of a directory, unordered."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise unreadable(folder, error) from error


def leads_to_folder(entry: Entry) -> bool:
    """Return True if the entry is a directory or a link to one."""
    try:
        return entry.is_dir()
    except OSError as error:
        # A link to itself is not a directory. Anything else may hide data, so it is not skipped.
        if error.errno == errno.ELOOP:
            return False
        raise unreadable(entry.path, error) from error


def identity_of(folder: str) -> Identity:
    """Return the identity of a directory, whatever its names are."""
    try:
        status = os.stat(folder)  # noqa: PTH116 - a Path per folder would cost more than the call
    except OSError as error:
        raise unreadable(folder, error) from error
    return status.st_dev, status.st_ino


def folders_below(
    tops: Iterable[str], enter: Callable[[str], bool], seen: set[Identity] | None = None
) -> Iterator[tuple[str, list[Entry]]]:
    """Yield ``tops`` and each directory below them whose name ``enter`` accepts, with its entries that are no folders.

    Every directory is found once, under the name that is reached by the fewest links, and of these the first by name;
    so that the result does not depend on the order in which the file system lists names. Links in circles, and
    folders that link to each other (a dozen of them could be walked through in a billion ways) cost nothing.
    ``seen`` holds those that were found by an earlier call.
    """
    seen = set() if seen is None else seen
    # How many links lead to a folder, and its name.
    todo = [(0, top) for top in tops]
    heapq.heapify(todo)
    while todo:
        links, folder = heapq.heappop(todo)
        identity = identity_of(folder)
        if identity in seen:
            continue
        seen.add(identity)
        others: list[Entry] = []
        for entry in scan(folder):
            if not leads_to_folder(entry):
                others.append(entry)
            elif enter(entry.name):
                heapq.heappush(todo, (links + entry.is_symlink(), entry.path))
        yield folder, others


def file_at(path: str, status: os.stat_result) -> File:
    """Return the facts of a regular file.

    A named pipe would block the reader forever, so anything but a regular file is rejected here.
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


# -- patterns ------------------------------------------------------------------------------------------------------


def has_magic(path: str) -> bool:
    """Return True if the path is a pattern."""
    return _MAGIC.search(path) is not None


def split_pattern(pattern: str) -> tuple[str, tuple[str, ...]]:
    """Return the fixed directory of an absolute pattern and the parts below it, the first of which is magic."""
    parts = [part for part in pattern.split("/") if part]
    first = next(i for i, part in enumerate(parts) if has_magic(part))
    return "/" + "/".join(parts[:first]), tuple(parts[first:])


def _visible(name: str) -> bool:
    return not name.startswith(".")


def _matching(folders: Iterable[str], part: str) -> Iterator[Entry]:
    matches = re.compile(fnmatch.translate(part)).match
    hidden_too = part.startswith(".")
    for folder in folders:
        for entry in scan(folder):
            if (hidden_too or _visible(entry.name)) and matches(entry.name):
                yield entry


def _subfolders(folders: Iterable[str], part: str) -> Iterator[str]:
    if part == _ANY_DEPTH:
        yield from (below for below, _ in folders_below(folders, _visible))
        return
    # Each directory once, here as well: a few links in a folder would multiply with every part of the pattern.
    found = [entry for entry in _matching(folders, part) if leads_to_folder(entry)]
    seen: set[Identity] = set()
    for entry in sorted(found, key=lambda entry: (entry.is_symlink(), entry.path)):
        identity = identity_of(entry.path)
        if identity not in seen:
            seen.add(identity)
            yield entry.path


def expand(base: str, parts: tuple[str, ...]) -> list[Entry]:
    """Return the files and folders that match, each once, in no order.

    As in a shell, a wildcard does not match a leading dot. With ``**`` only files are returned: their folders
    match as well, and would give each file again.
    """
    if not os.path.isdir(base):  # noqa: PTH112 - the paths of this module are plain strings throughout
        return []
    folders: Iterable[str] = [base]
    *middle, last = parts
    for part in middle:
        # A dict drops what two ``**`` reach in two ways, and keeps the order.
        folders = dict.fromkeys(_subfolders(folders, part))
    if last == _ANY_DEPTH:
        folders, last = dict.fromkeys(_subfolders(folders, last)), "*"
    found = _matching(folders, last)
    if _ANY_DEPTH in parts:
        return [entry for entry in found if not leads_to_folder(entry)]
    return list(found)
