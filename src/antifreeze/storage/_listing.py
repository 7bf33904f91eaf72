"""Lists the files of a source, in an order that no file system decides, and compares them with those of a manifest."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from antifreeze.core import ConfigError, File, Manifest, SourceChanged, SourceNotFound
from antifreeze.storage._manifest_file import MANIFEST_NAME
from antifreeze.storage._walk import (
    Identity,
    expand,
    file_at,
    file_of,
    folders_below,
    has_magic,
    leads_to_folder,
    split_pattern,
    unreadable,
)

SUFFIXES = (".parquet", ".pq", ".parq")

_ARGUMENT = "input_dir"
_LOCAL = "local:"
"""How litData marks a path whose files it copies before it reads them."""
_NUMBERS = re.compile(r"([0-9]+)")
_SHOWN = 5
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The current files of a source."""

    root: str
    """The directory that was given, otherwise the common directory of all files; absolute."""
    files: tuple[File, ...]
    """With paths relative to the root."""
    is_folder: bool
    """One directory was named, and not a file, a glob or a list."""


def natural_key(path: str) -> tuple[list[str | int], str]:
    """Return a sort key under which ``part-2`` comes before ``part-10``, and ``a/z`` before ``a-b/c``.

    The path itself comes last: ``part-1`` and ``part-01`` have equal numbers, and their order must be fixed too.
    """
    parts: list[str | int] = list(_NUMBERS.split(path.replace("/", "\0")))
    parts[1::2] = map(int, parts[1::2])
    return parts, path


def list_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Listing:
    """List a directory (with all below it), a glob, a file, or a list of these."""
    if isinstance(source, (str, os.PathLike)):
        path = _absolute(source)
        files = _files_at(path)
        is_folder = os.path.isdir(path)  # noqa: PTH112 - strings throughout
        return _listing(path if is_folder else _common_folder(files), files, is_folder)
    if not isinstance(source, Sequence) or isinstance(source, (bytes, bytearray, memoryview)):
        raise _wrong_type(source)
    if not source:
        hint = "pass at least one directory, file or glob"
        raise ConfigError(f"{_ARGUMENT} is an empty list", hint=hint, argument=_ARGUMENT, path="")
    files = [file for item in source for file in _files_at(_absolute(item))]
    twice = [path for path, count in Counter(file.path for file in files).items() if count > 1]
    if twice:
        hint = "name each file once; a directory or glob in the list may contain it already"
        raise ConfigError(f"{twice[0]} is named twice", hint=hint, argument=_ARGUMENT, path=twice[0])
    return _listing(_common_folder(files), files, is_folder=False)


def _listing(root: str, files: Iterable[File], is_folder: bool) -> Listing:
    cut = len(root.rstrip("/")) + 1
    relative = (File(path=file.path[cut:], size=file.size, mtime_ns=file.mtime_ns) for file in files)
    return Listing(root=root, files=tuple(relative), is_folder=is_folder)


def _common_folder(files: Sequence[File]) -> str:
    return os.path.commonpath({file.path.rpartition("/")[0] or "/" for file in files})


def _wrong_type(source: object) -> ConfigError:
    kind = type(source).__name__
    hint = "pass a directory, a file or a glob as str or Path, or a list of these"
    return ConfigError(f"{_ARGUMENT} cannot be of type {kind}", hint=hint, argument=_ARGUMENT, path=repr(source))


def _absolute(source: object) -> str:
    """Return the absolute path or pattern of an argument."""
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(path, str):
        raise _wrong_type(source)
    if not path or "\0" in path:
        hint = "name a directory, a file or a glob"
        what = "contains a null character" if path else "is an empty string"
        raise ConfigError(f"{_ARGUMENT} {what}", hint=hint, argument=_ARGUMENT, path=path)
    if path.startswith(_LOCAL) and not os.path.lexists(path):
        path = path.removeprefix(_LOCAL) or "."
    scheme = _SCHEME.match(path)
    path = _path_of_url(path, scheme[0]) if scheme else os.path.expanduser(path)  # noqa: PTH111
    parts = path.split("/")
    if ".." not in parts:
        return os.path.abspath(path)  # noqa: PTH100 - Path.resolve would replace links by their targets
    magic = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
    if ".." in parts[magic:]:
        hint = "write the pattern without '..' behind a wildcard"
        raise ConfigError(f"the pattern {path} goes upwards", hint=hint, argument=_ARGUMENT, path=path)
    # Order: links before '..'. Removing 'link/..' as text would lead to a different directory.
    fixed = os.path.realpath("/".join(parts[:magic]) or "/")
    return "/".join([fixed.rstrip("/"), *parts[magic:]]) or "/"


def _path_of_url(url: str, scheme: str) -> str:
    parts = urlsplit(url, allow_fragments=False)
    if scheme.lower() != "file":
        hint = "only local files are supported in this version; copy or mount the data and name its path"
        raise ConfigError(f"cannot read {url}: {scheme}:// is not supported", hint=hint, argument=_ARGUMENT, path=url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        hint = "a file URL has three slashes and an absolute path: file:///data/train"
        raise ConfigError(f"{url} does not name a local file", hint=hint, argument=_ARGUMENT, path=url)
    # A '?' is a wildcard here, not the start of a query.
    return unquote(parts.path + (f"?{parts.query}" if parts.query else ""))


def _files_at(path: str) -> list[File]:
    """Return the files of one item with absolute paths, in natural order."""
    try:
        status = os.stat(path)  # noqa: PTH116 - strings throughout
    except (FileNotFoundError, NotADirectoryError) as error:
        # Order: an existing file with exactly this name takes precedence over the pattern.
        if has_magic(path):
            return _files_of_glob(path)
        raise _missing(path) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(status.st_mode):
        files, others = _files_below(path)
        if not files:
            raise _without_parquet(path, others)
        return files
    return [file_at(path, status)]


def _shown(name: str) -> bool:
    # Spark and others write markers, checksums and unfinished work under such names.
    return not name.startswith((".", "_"))


def _files_below(folder: str, seen: set[Identity] | None = None) -> tuple[list[File], list[str]]:
    """Return the Parquet files below a directory in natural order, and the names of the other files."""
    files: list[File] = []
    others: list[str] = []
    for _, entries in folders_below([folder], _shown, seen):
        for entry in entries:
            if not _shown(entry.name):
                continue
            if entry.name.lower().endswith(SUFFIXES):
                files.append(file_of(entry))
            else:
                others.append(entry.path[len(folder.rstrip("/")) + 1 :])
    files.sort(key=lambda file: natural_key(file.path))
    return files, others


def _files_of_glob(pattern: str) -> list[File]:
    base, parts = split_pattern(pattern)
    found = [entry for entry in expand(base, parts) if entry.name != MANIFEST_NAME]
    files: list[File] = []
    seen: set[Identity] = set()
    for entry in sorted(found, key=lambda entry: (entry.is_symlink(), entry.path)):
        if not leads_to_folder(entry):
            files.append(file_of(entry))
        elif _shown(entry.name):
            # Spark calls the folder that it writes ``name.parquet``.
            files.extend(_files_below(entry.path, seen)[0])
    if files:
        return sorted(files, key=lambda file: natural_key(file.path))
    if found:
        message = f"{pattern} matches only folders without Parquet files ({len(found)})"
    elif not os.path.isdir(base):  # noqa: PTH112 - strings throughout
        message = f"nothing matches {pattern}: there is no folder {base}"
    else:
        message = f"nothing matches {pattern}"
    hint = f"the pattern is matched below {base}; ** matches any number of directories"
    raise SourceNotFound(message, hint=hint, path=pattern)


def _without_parquet(folder: str, others: list[str]) -> SourceNotFound:
    if others:
        count = "1 file" if len(others) == 1 else f"{len(others)} files"
        what = f"it holds {count}, such as {min(others, key=natural_key)}"
    elif os.listdir(folder):  # noqa: PTH208 - strings throughout
        what = "it holds only empty folders and names that start with '.' or '_', which are skipped"
    else:
        what = "it is empty"
    hint = "names must end in .parquet, .pq or .parq; a glob such as 'data/*' takes files of any name"
    return SourceNotFound(f"there are no Parquet files in {folder}: {what}", hint=hint, path=folder)


def _missing(path: str) -> SourceNotFound:
    folder, _, name = path.rpartition("/")
    while not os.path.isdir(folder or "/"):  # noqa: PTH112 - strings throughout
        folder, _, name = folder.rpartition("/")
    try:
        # Not all of a hundred thousand: the guess must not take longer than the search.
        present = sorted(os.listdir(folder or "/"))[:1000]  # noqa: PTH208 - strings throughout
        near = difflib.get_close_matches(name, present, n=1)
    except OSError:
        near = []
    hint = f"did you mean {folder}/{near[0]}?" if near else f"{folder or '/'} exists, but has no {name}"
    return SourceNotFound(f"there is no file or directory {path}", hint=hint, path=path)


# -- comparing -----------------------------------------------------------------------------------------------------


def check_unchanged(manifest: Manifest, listing: Listing, manifest_path: str) -> None:
    """Raise ``SourceChanged`` unless the files are those that were indexed, in that order."""
    if manifest.files == listing.files:
        return
    indexed = {file.path: file for file in manifest.files}
    present = {file.path: file for file in listing.files}
    changed = tuple(path for path, file in indexed.items() if path in present and present[path] != file)
    vanished = tuple(path for path in indexed if path not in present)
    appeared = tuple(path for path in present if path not in indexed)
    kinds = (("changed", changed), ("vanished", vanished), ("appeared", appeared))
    parts = [_named(kind, paths) for kind, paths in kinds if paths]
    what = "; ".join(parts) or "the same files were indexed in another order"
    raise SourceChanged(
        f"the files in {listing.root} are not those of {manifest_path}: {what}",
        hint="run index_parquet_dataset again, or delete the manifest: footers are then read when a dataset is opened",
        path=manifest_path,
        changed=changed,
        vanished=vanished,
        appeared=appeared,
    )


def check_file(path: str, file: File) -> None:
    """Raise ``SourceChanged`` unless a file is still the one that the dataset was opened with."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every row group, and four times faster than Path
    except FileNotFoundError as error:
        raise SourceChanged(
            f"{path} has vanished since the dataset was opened",
            hint="put the file back, or start again without it",
            changed=(),
            vanished=(path,),
            appeared=(),
        ) from error
    if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns):
        raise SourceChanged(
            f"{path} has changed since the dataset was opened: it had {file.size:,} bytes and has {status.st_size:,}",
            hint="do not rewrite files while a job reads them; start again",
            changed=(path,),
            vanished=(),
            appeared=(),
        )


def _named(kind: str, paths: tuple[str, ...]) -> str:
    shown = ", ".join(paths[:_SHOWN])
    more = f" and {len(paths) - _SHOWN:,} more" if len(paths) > _SHOWN else ""
    return f"{len(paths):,} {kind} ({shown}{more})"


def fingerprint(manifest: Manifest) -> str:
    """Return a fingerprint of the content: the same for a copy of the dataset on another machine.

    It excludes times and the root. It also excludes the bytes of the schema, which another version of Arrow may write
    differently: names and types are used instead.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(manifest.schema))
    facts = [
        [file.path for file in manifest.files],
        [file.size for file in manifest.files],
        manifest.fragment_file.tolist(),
        manifest.fragment_group.tolist(),
        manifest.fragment_rows.tolist(),
        [[field.name, str(field.type)] for field in schema],
    ]
    text = json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return hashlib.blake2b(text, digest_size=16).hexdigest()
