"""Builds a manifest: reads all footers, compares them and adds them up."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import pyarrow as pa

from antifreeze.core import ColumnFacts, ConfigError, File, Manifest
from antifreeze.formats._footers import Footer, KnownLayouts, read_footer
from antifreeze.formats._schema_merge import agree, mismatch
from antifreeze.formats._thread_pool import DaemonThreadPool


def build_manifest(
    listing_files: Sequence[File],
    root: str,
    advance: Callable[[int], None] | None = None,
    threads: int | None = None,
) -> Manifest:
    """Read the footers of all files and return the manifest of the dataset.

    ``advance`` is called in the calling thread with the number of files that were read. The error of the first bad
    file is raised, whatever the threads did. Files may differ in some columns: reading one of these is an error.
    """
    if threads is not None and threads < 1:
        hint = "pass at least 1, or None to choose automatically"
        raise ConfigError(f"invalid threads: expected an integer >= 1, got {threads}", hint=hint, argument="threads")
    if not listing_files:
        raise ConfigError("there are no files to index", hint="name at least one file", argument="listing_files")
    base = root.rstrip("/")
    paths = [f"{base}/{file.path}" for file in listing_files]
    known = KnownLayouts()
    footers = DaemonThreadPool(lambda path: read_footer(path, known), paths, threads).run(advance)
    agreement = agree(footers)
    schema = agreement.schema
    fragment_file, fragment_group, fragment_rows = array("q"), array("q"), array("q")
    for number, footer in enumerate(footers):
        for group, rows in enumerate(footer.group_rows):
            if rows:
                fragment_file.append(number)
                fragment_group.append(group)
                fragment_rows.append(rows)
    manifest = Manifest(
        files=tuple(listing_files),
        schema=schema.serialize().to_pybytes(),
        columns=_added_up(schema, footers),
        fragment_file=fragment_file,
        fragment_group=fragment_group,
        fragment_rows=fragment_rows,
        differences=agreement.differences,
        file_difference=agreement.file_difference,
        model=agreement.model,
    )
    if not schema.names and (error := mismatch(manifest, paths)) is not None:
        raise error  # whatever columns are chosen
    return manifest


def _added_up(schema: pa.Schema, footers: Sequence[Footer]) -> tuple[ColumnFacts, ...]:
    names = schema.names
    nbytes, values = [0] * len(names), [0] * len(names)
    lengths: list[set[int | None]] = [set() for _ in names]
    orders: dict[int, list[int]] = {}
    for footer in footers:
        order = orders.get(id(footer.schema))
        if order is None:
            order = orders[id(footer.schema)] = [footer.schema.names.index(name) for name in names]
        filled = any(footer.group_rows)
        for index, column in enumerate(order):
            nbytes[index] += footer.nbytes[column]
            values[index] += footer.values[column]
            if filled:
                lengths[index].add(footer.lengths[column])
    return tuple(
        ColumnFacts(
            name=name,
            nbytes=nbytes[index],
            values=values[index],
            length=lengths[index].pop() if len(lengths[index]) == 1 else None,
        )
        for index, name in enumerate(names)
    )
