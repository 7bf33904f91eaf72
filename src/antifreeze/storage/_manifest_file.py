"""The manifest on disk: one line of JSON, columnar, with a version and a checksum.

    {"antifreeze_manifest":1,"crc32":"89abcdef","payload":{"paths":[...],"sizes":[...],...}}

The checksum covers the bytes of the payload as stored in the file, so that they are read and checked without being
written again. Nothing in the file is trusted: types, lengths, order and paths are all verified.
"""

from __future__ import annotations

import base64
import json
import operator
import os
import re
import secrets
import zlib
from array import array
from contextlib import suppress
from itertools import islice
from typing import Any

from antifreeze.core import (
    ColumnFacts,
    File,
    InputError,
    Manifest,
    ManifestError,
    SourceNotFound,
    create_file,
    read_regular,
)

MANIFEST_NAME = "_antifreeze_manifest.json"
VERSION = 2
"""What is written for files that differ in some of their columns; for others, it is 1, which older versions read."""

_HEAD = re.compile(rb'\{"antifreeze_manifest":([0-9]{1,9}),"crc32":"([0-9a-f]{8})","payload":')
_TAIL = b"}\n"
_LARGEST = 2**63 - 1
_MAX_ROWS = 2**48
# About eight million row groups.
_MAX_NBYTES = 512 << 20


def write_manifest(manifest: Manifest, path: str) -> None:
    """Write a manifest atomically: at every moment the path holds either the old or the new one."""
    data = _encode(manifest)
    try:
        _replace(path, data)
    except OSError as error:
        hint = (
            "pass index_path=... with a writable path, or do not index at all: "
            "the footers are then read when the dataset is opened"
        )
        reason = error.strerror or str(error)
        raise InputError(f"the manifest {path} cannot be written: {reason}", hint=hint, path=path) from error


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    # In the same folder, for a rename is atomic only within a file system; with a dot, so that no listing shows it.
    # Tried: tempfile. It makes files that only their owner can read, and datasets are shared.
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")  # noqa: PTH118 - strings throughout
    handle = create_file(temporary, 0o666)
    try:
        with open(handle, "wb") as file:  # noqa: PTH123 - an open descriptor, not a path
            file.write(data)
            file.flush()
            # Order: data before name. After a power failure the new name must not refer to an empty file.
            os.fsync(handle)
        os.replace(temporary, path)  # noqa: PTH105 - strings throughout
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - strings throughout
        raise
    # The rename itself is kept by syncing the folder; some network mounts cannot, and the file is whole without it.
    with suppress(OSError):
        _sync_folder(folder or ".")


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _encode(manifest: Manifest) -> bytes:
    payload = {
        "paths": [file.path for file in manifest.files],
        "sizes": [file.size for file in manifest.files],
        "mtimes_ns": [file.mtime_ns for file in manifest.files],
        "fragment_file": manifest.fragment_file.tolist(),
        "fragment_group": manifest.fragment_group.tolist(),
        "fragment_rows": manifest.fragment_rows.tolist(),
        "column_names": [column.name for column in manifest.columns],
        "column_nbytes": [column.nbytes for column in manifest.columns],
        "column_values": [column.values for column in manifest.columns],
        "column_lengths": [column.length for column in manifest.columns],
        "schema": base64.b64encode(manifest.schema).decode("ascii"),
    }
    if manifest.differences:
        payload |= {
            "differences": [list(map(list, difference.items())) for difference in manifest.differences],
            "file_difference": manifest.file_difference.tolist(),
            "model": [manifest.model],
        }
    # ASCII only: names of files that are not UTF-8 reach Python as lone surrogates, which only escapes can carry.
    data = json.dumps(payload, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    version = VERSION if manifest.differences else 1
    return b'{"antifreeze_manifest":%d,"crc32":"%08x","payload":' % (version, zlib.crc32(data)) + data + _TAIL


def read_manifest(path: str) -> Manifest:
    """Read a manifest and verify all its contents."""
    try:
        data = read_regular(path, _MAX_NBYTES)
    except FileNotFoundError as error:
        hint = "run index_parquet_dataset first, with the same index_path"
        raise SourceNotFound(f"there is no manifest {path}", hint=hint, path=path) from error
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    try:
        return _manifest(_payload(data))
    # A payload whose checksum is right can still be nested deeper than the parser can follow.
    except (ValueError, RecursionError) as error:
        raise _error(path, str(error)) from error


def _error(path: str, what: str) -> ManifestError:
    hint = "run index_parquet_dataset again, or delete the file: the footers are then read when the dataset is opened"
    return ManifestError(f"the manifest {path} {what}", hint=hint, path=path)


def _payload(data: bytes) -> dict[str, Any]:
    head = _HEAD.match(data)
    if head is None:
        raise ValueError("is not an antifreeze manifest" if data else "is empty")
    if not 1 <= int(head[1]) <= VERSION:
        raise ValueError(f"has version {int(head[1])}; this version of antifreeze supports versions up to {VERSION}")
    if not data.endswith(_TAIL):
        raise ValueError("is cut off: it was probably not copied whole")
    payload = data[head.end() : -len(_TAIL)]
    if b"%08x" % zlib.crc32(payload) != head[2]:
        raise ValueError("is damaged: its checksum does not match its content")
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"does not parse: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("has no payload")  # noqa: TRY004 - a wrong file, not a wrong type of argument
    return content


def _manifest(content: dict[str, Any]) -> Manifest:
    paths = _list(content, "paths", str)
    _check_paths(paths)
    sizes = _numbers(content, "sizes", len(paths))
    # Times may lie before 1970.
    mtimes = _numbers(content, "mtimes_ns", len(paths), least=-_LARGEST)
    files = tuple(
        File(path=path, size=size, mtime_ns=mtime) for path, size, mtime in zip(paths, sizes, mtimes, strict=True)
    )
    rows = _numbers(content, "fragment_rows", least=1)
    if sum(rows) > _MAX_ROWS:
        raise ValueError(f"is damaged: it claims {sum(rows):,} rows")
    fragment_file = _numbers(content, "fragment_file", len(rows))
    fragment_group = _numbers(content, "fragment_group", len(rows))
    _check_order(fragment_file, fragment_group, len(files))
    differences, file_difference, model = _differences(content, len(files))
    return Manifest(
        files=files,
        schema=_schema(content),
        columns=_columns(content),
        fragment_file=array("q", fragment_file),
        fragment_group=array("q", fragment_group),
        fragment_rows=array("q", rows),
        differences=differences,
        file_difference=array("q", file_difference),
        model=model,
    )


def _list(content: dict[str, Any], name: str, *kinds: type) -> list[Any]:
    values = content.get(name)
    # By exact type: a bool is an int, and no fact here is a bool.
    if not isinstance(values, list) or not set(map(type, values)) <= set(kinds):
        raise ValueError(f"is damaged: {name} is missing or of a wrong type")
    return values


def _numbers(content: dict[str, Any], name: str, count: int | None = None, *, least: int = 0) -> list[int]:
    values = _list(content, name, int)
    if count is not None and len(values) != count:
        raise ValueError(f"is damaged: {name} has {len(values)} entries, not {count}")
    if values and (min(values) < least or max(values) > _LARGEST):
        raise ValueError(f"is damaged: {name} has a number out of range")
    return values


def _check_paths(paths: list[str]) -> None:
    for path in paths:
        # No path taken from a file may lead out of the root: absolute paths have an empty first part.
        if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path:
            raise ValueError(f"is not safe to use: {path!r} does not lie below the root of the dataset")
    if len(set(paths)) != len(paths):
        raise ValueError("is damaged: it lists a file twice")


def _check_order(files: list[int], groups: list[int], num_files: int) -> None:
    if files and max(files) >= num_files:
        raise ValueError("is damaged: a fragment belongs to a file that is not listed")
    pairs = list(zip(files, groups, strict=True))
    if not all(map(operator.lt, pairs, islice(pairs, 1, None))):
        raise ValueError("is damaged: the fragments are not in order")


def _columns(content: dict[str, Any]) -> tuple[ColumnFacts, ...]:
    names = _list(content, "column_names", str)
    nbytes = _numbers(content, "column_nbytes", len(names))
    values = _numbers(content, "column_values", len(names))
    lengths = _list(content, "column_lengths", int, type(None))
    # A length that is not known is checked as a zero.
    _numbers({"column_lengths": [length or 0 for length in lengths]}, "column_lengths", len(names))
    facts = zip(names, nbytes, values, lengths, strict=True)
    return tuple(ColumnFacts(name=a, nbytes=b, values=c, length=d) for a, b, c, d in facts)


def _differences(content: dict[str, Any], num_files: int) -> tuple[tuple[dict[str, str], ...], list[int], int]:
    """Return the differences in columns that not all files have, if there are any."""
    if "differences" not in content:
        return (), [], 0
    found: list[dict[str, str]] = []
    for pairs in _list(content, "differences", list):
        if not all(type(pair) is list and len(pair) == 2 and set(map(type, pair)) == {str} for pair in pairs):
            raise ValueError("is damaged: differences are of a wrong type")
        found.append(dict(pairs))
    numbers = _numbers(content, "file_difference", num_files, least=-1)
    model = _numbers(content, "model", 1)[0]
    if model >= num_files or max(numbers, default=-1) >= len(found):
        raise ValueError("is damaged: differences belong to files that are not listed")
    return tuple(found), numbers, model


def _schema(content: dict[str, Any]) -> bytes:
    text = content.get("schema")
    if not isinstance(text, str):
        raise ValueError("is damaged: schema is missing or of a wrong type")  # noqa: TRY004 - as above
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ValueError("is damaged: schema is not base64") from error
