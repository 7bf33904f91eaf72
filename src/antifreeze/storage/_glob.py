"""Patterns such as ``data/*/part-*.parquet`` and ``data/**/*.parquet``.

Tried: ``glob.glob``. Its ``**`` follows links in circles, forty levels deep and, with two such links, 2**40 ways.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator

from antifreeze.storage._walk import Entry, Identity, folders_below, identity_of, leads_to_folder, scan

_ANY_DEPTH = "**"
_MAGIC = re.compile(r"[*?[]")


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
