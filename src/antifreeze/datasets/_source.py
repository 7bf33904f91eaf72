"""From what the user names to all that is known of it before a row is read; folders named ``key=value`` are columns."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa

from antifreeze.core import ConfigError, InputError, Manifest, ManifestError, Progress, SchemaMismatch, get_logger
from antifreeze.core import arguments as check
from antifreeze.formats import build_manifest, read_footer
from antifreeze.storage import MANIFEST_NAME, Listing, check_unchanged, list_files, read_manifest, write_manifest

logger = get_logger()

_SHOWN = 10
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Leading zeros mean a code, such as a month or a postal code, and would be lost in a number.
_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

InputDir = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A column whose values are in the names of folders: one value per file."""

    name: str
    type: pa.DataType
    values: tuple[int | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSource:
    """Files to read, with their manifest."""

    root: str
    paths: tuple[str, ...]
    """Absolute, in the order of ``manifest.files``."""
    manifest: Manifest
    schema: pa.Schema
    """The columns that all files hold, without those of their folders."""
    partitions: tuple[Partition, ...]


def open_source(
    input_dir: InputDir,
    *,
    hive: bool = False,
    index_path: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
) -> DataSource:
    """List the files and find out what they hold, from the manifest if there is one, else from their footers.

    Nothing is written. ``columns`` are those that will be asked for, if that is known: folders may differ in others.
    """
    listing = list_files(input_dir)
    manifest, schema = _known(listing, manifest_path(listing, index_path), index_path is not None)
    root = listing.root.rstrip("/")
    paths = tuple(f"{root}/{file.path}" for file in listing.files)
    # A file that is named directly tells its partitions by its whole path; a directory says where they begin.
    base = listing.root if listing.is_folder else "/"
    partitions = _partitions(paths, base, manifest, schema, columns) if hive else ()
    return DataSource(root=listing.root, paths=paths, manifest=manifest, schema=schema, partitions=partitions)


def _partitions(
    paths: Sequence[str], base: str, manifest: Manifest, schema: pa.Schema, columns: Sequence[str] | None
) -> tuple[Partition, ...]:
    stored = {*schema.names, *(name for difference in manifest.differences for name in difference)}
    try:
        return partitions_of(paths, base, stored)
    except SchemaMismatch:
        if columns is None:
            raise
        return partitions_of(paths, base, stored, only=columns)


def manifest_path(listing: Listing, index_path: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a source's manifest, whether it exists or not; None if there is no default path."""
    if index_path is None:
        return f"{listing.root.rstrip('/')}/{MANIFEST_NAME}" if listing.is_folder else None
    place = os.fspath(index_path)
    if not isinstance(place, str) or not place:
        hint = "give the path of the manifest file, or of the folder that it is in"
        raise ConfigError(f"index_path cannot be {index_path!r}", hint=hint, argument="index_path")
    place = os.path.abspath(os.path.expanduser(place))  # noqa: PTH100, PTH111 - links must stay as they are
    return f"{place}/{MANIFEST_NAME}" if os.path.isdir(place) else place  # noqa: PTH112


def _known(listing: Listing, place: str | None, required: bool) -> tuple[Manifest, pa.Schema]:
    if place is None or not (required or os.path.lexists(place)):
        manifest = build_manifest(listing.files, listing.root)
        return manifest, pa.ipc.read_schema(pa.py_buffer(manifest.schema))
    manifest = read_manifest(place)
    check_unchanged(manifest, listing, place)
    _check_empty_files(manifest, listing, place)
    return manifest, _schema_of(manifest, place)


def _check_empty_files(manifest: Manifest, listing: Listing, place: str) -> None:
    """Raise if a file has rows that the manifest does not know. Files with rows are compared when they are opened."""
    without_rows = set(range(len(manifest.files))).difference(manifest.fragment_file)
    for number in sorted(without_rows):
        path = f"{listing.root.rstrip('/')}/{manifest.files[number].path}"
        if num_rows := sum(read_footer(path).group_rows):
            hint = "run index_parquet_dataset again, or delete the manifest"
            what = f"the manifest {place} has no rows of {path}, and its footer says {num_rows:,}"
            raise ManifestError(what, hint=hint, path=place)


def _schema_of(manifest: Manifest, place: str) -> pa.Schema:
    hint = "run index_parquet_dataset again"
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(manifest.schema))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ManifestError(f"the manifest {place} has a damaged schema", hint=hint, path=place) from error
    if schema.names != [column.name for column in manifest.columns]:
        raise ManifestError(f"the manifest {place} contradicts itself on its columns", hint=hint, path=place)
    return schema


@check.explained("index_parquet_dataset", renamed={"pq_dir_url": "input_dir"})
def index_parquet_dataset(
    input_dir: InputDir,
    cache_dir: str | os.PathLike[str] | None = None,
    storage_options: object = None,  # noqa: ARG001
    num_workers: int | None = None,
    *,
    index_path: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> str:
    """Write the manifest of a dataset and return its path.

    A dataset can be read without one; with it, opening a hundred thousand files takes a second or two. Call this again
    when the files have changed.

    Args:
        input_dir: A directory (searched recursively), a glob, a file, or a list of these.
        cache_dir: An existing folder to write to, as in litData; pass it to the dataset as ``index_path``.
        storage_options: Accepted for code written for litData; no effect: files are local.
        num_workers: Number of threads that read; by default adapted to how fast the storage answers.
        index_path: Where to write, a file or an existing folder. By default the manifest is in the directory; for a
            glob, a file or a list it is required, and must be passed to the dataset as well.
        progress: True to show a progress bar if standard error is a terminal.

    Returns:
        The path of the manifest.

    Raises:
        ConfigError: If an argument has a wrong value.
        SourceNotFound: If there is no such directory or file.
        InputError: If the manifest cannot be written.
        CorruptFile: If a footer cannot be decoded.

    Example:
        ```python
        import antifreeze as af

        path = af.index_parquet_dataset("data/train", progress=False)
        ```
    """
    if num_workers is not None and num_workers < 1:
        hint = "give at least 1, or None to let it be chosen"
        raise ConfigError(f"num_workers cannot be {num_workers}", hint=hint, argument="num_workers")
    if index_path is None and cache_dir is not None:
        index_path = f"{os.fspath(cache_dir)}/{MANIFEST_NAME}"
    listing = list_files(input_dir)
    place = manifest_path(listing, index_path)
    if place is None:
        hint = "pass index_path=..., here and to the dataset"
        message = "index_path is required for a glob, a file or a list: only a directory has a default one"
        raise ConfigError(message, hint=hint, argument="index_path")
    _check_folder(place)
    if not progress:
        manifest = build_manifest(listing.files, listing.root, threads=num_workers)
    else:
        with Progress("Indexing", len(listing.files), "files") as bar:
            manifest = build_manifest(listing.files, listing.root, bar.advance, num_workers)
    write_manifest(manifest, place)
    if manifest.differences:
        names = sorted({name for difference in manifest.differences for name in difference})
        logger.warning(
            "antifreeze: the files in %s differ in %s; read them with columns=[...] that they share",
            listing.root,
            ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""),
        )
    return place


def _check_folder(place: str) -> None:
    """Refuse a path that cannot be written before an hour is spent on reading."""
    folder = os.path.dirname(place)  # noqa: PTH120 - strings throughout
    if not os.path.isdir(folder):  # noqa: PTH112
        hint = "make the folder, or pass another index_path=..."
        raise InputError(f"the manifest {place} cannot be written: there is no such folder", hint=hint, path=place)
    if not os.access(folder, os.W_OK | os.X_OK):
        hint = (
            "pass index_path=... with a path that can be written, or do not index at all: "
            "the footers are then read when the dataset is opened"
        )
        message = f"the manifest {place} cannot be written: the folder is read-only"
        raise InputError(message, hint=hint, path=place)


# -- partitions ------------------------------------------------------------------------------------------------------


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
