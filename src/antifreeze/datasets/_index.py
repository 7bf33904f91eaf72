"""Reading all footers once, so that no later start has to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from antifreeze.core import ConfigError, InputError, Progress, get_logger
from antifreeze.core import arguments as check
from antifreeze.datasets._source import manifest_path
from antifreeze.formats import build_manifest
from antifreeze.storage import MANIFEST_NAME, list_files, write_manifest

logger = get_logger()

_SHOWN = 10


@check.explained("index_parquet_dataset", renamed={"pq_dir_url": "input_dir"})
def index_parquet_dataset(
    input_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
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
