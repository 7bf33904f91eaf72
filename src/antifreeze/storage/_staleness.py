"""Checks whether the files are still those that were indexed, and computes the fingerprint of a dataset."""

from __future__ import annotations

import hashlib
import json
import os

import pyarrow as pa

from antifreeze.core import File, Manifest, SourceChanged
from antifreeze.storage._listing import Listing

_SHOWN = 5


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
