"""Folders named ``key=value`` as columns; pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from antifreeze.core import SchemaMismatch

_NULL = "__HIVE_DEFAULT_PARTITION__"
# Leading zeros mean a code, such as a month or a postal code, and would be lost in a number.
_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A column whose values are in the names of folders: one value per file."""

    name: str
    type: pa.DataType
    values: tuple[int | str, ...]


def partitions_of(
    paths: Sequence[str], base: str, columns: Collection[str], only: Collection[str] | None = None
) -> tuple[Partition, ...]:
    """Return the columns that the folders of ``paths`` below ``base`` name; all of them, or ``only`` some.

    ``columns`` are those of the files: a column cannot come from both.
    """
    cut = len(base.rstrip("/")) + 1
    cache: dict[str, dict[str, str]] = {}
    keys: list[dict[str, str]] = []
    for path in paths:
        folder = path.rpartition("/")[0][cut:]
        if folder not in cache:
            cache[folder] = _keys_of(folder, path, only)
        keys.append(cache[folder])
    first = keys[0]
    for path, found in zip(paths, keys, strict=True):
        if found.keys() != first.keys():
            raise _unlike(paths[0], first, path, found)
    for name in first:
        if name in columns:
            hint = "read with hive=False, or rename the folders or the column"
            message = f"{name!r} is a column of the files and a folder name of {paths[0]} too"
            raise SchemaMismatch(message, hint=hint, file=paths[0], column=name)
    return tuple(_partition(name, [found[name] for found in keys]) for name in first)


def _keys_of(folder: str, path: str, only: Collection[str] | None) -> dict[str, str]:
    keys: dict[str, str] = {}
    for part in folder.split("/"):
        raw_name, equals, raw_value = part.partition("=")
        if not equals or not raw_name:
            continue
        name, value = unquote(raw_name), unquote(raw_value)
        if only is not None and name not in only:
            continue
        if name in keys:
            hint = "rename one of the folders"
            raise SchemaMismatch(f"two folders of {path} name {name!r}", hint=hint, file=path, column=name)
        if value == _NULL:
            hint = "null partitions are not supported; leave these files out, or give the folder a value"
            message = f"the folder {part} of {path} means null"
            raise SchemaMismatch(message, hint=hint, file=path, column=name)
        keys[name] = value
    return keys


def _unlike(first: str, wanted: dict[str, str], path: str, found: dict[str, str]) -> SchemaMismatch:
    differing = sorted(wanted.keys() ^ found.keys())
    with_key, without = (path, first) if differing[0] in found else (first, path)
    message = f"{without} has no folder {differing[0]}=..., which {with_key} has"
    hint = "all files need the same key=value folders; move the file, or read with hive=False"
    return SchemaMismatch(message, hint=hint, file=path, model=first, column=differing[0])


def _partition(name: str, texts: list[str]) -> Partition:
    distinct = set(texts)
    if all(_PLAIN_INTEGER.fullmatch(text) and _SMALLEST <= int(text) <= _LARGEST for text in distinct):
        numbers = {text: int(text) for text in distinct}
        return Partition(name=name, type=pa.int64(), values=tuple(numbers[text] for text in texts))
    return Partition(name=name, type=pa.string(), values=tuple(texts))
