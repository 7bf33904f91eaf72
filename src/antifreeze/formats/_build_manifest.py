"""Builds a manifest: reads all footers, finds the columns that all files share, and adds up their sizes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from antifreeze.core import ColumnFacts, ConfigError, File, Manifest, SchemaMismatch
from antifreeze.formats._footers import Footer, read_footer
from antifreeze.formats._thread_pool import DaemonThreadPool

_SHOWN = 5
_HINT = (
    "choose columns that all files share with columns=[...], write these files again with the same columns and types, "
    "or read them as separate datasets"
)


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
    footers = DaemonThreadPool(read_footer, paths, threads).run(advance)
    schema, agreement = _agree(footers)
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
        **agreement,
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


def _agree(footers: Sequence[Footer]) -> tuple[pa.Schema, dict[str, Any]]:
    """Return the columns that all files have in the same type, in the order of the first file; and how files differ.

    All are compared with the first that has rows: ``model``, ``differences`` and ``file_difference`` of the manifest.
    The order of columns and whether they may hold nulls can differ. A file without rows may have a column of type
    null, which is what writers make of an empty column.
    """
    model = next((i for i, footer in enumerate(footers) if sum(footer.group_rows)), 0)
    schema = footers[model].schema
    verdicts: dict[tuple[int, bool], int] = {}
    numbers: dict[tuple[tuple[str, str], ...], int] = {}
    file_difference = array("q")
    for footer in footers:
        empty = not any(footer.group_rows)
        # By identity: files with equal schemas share the object, and the footers keep it alive.
        key = (id(footer.schema), empty)
        if key not in verdicts:
            found = tuple(_differences(schema, footer.schema, empty).items())
            verdicts[key] = numbers.setdefault(found, len(numbers)) if found else -1
        file_difference.append(verdicts[key])
    differences = tuple(map(dict, numbers))
    contested = {name for found in differences for name in found}
    names = [name for name in footers[0].schema.names if name not in contested]
    filled = {id(footer.schema): footer.schema for footer in footers if any(footer.group_rows)}
    if not all(other.field(name).equals(schema.field(name)) for other in filled.values() for name in names):
        # The only remaining difference is where nulls are allowed.
        fields = [_relaxed_field(schema.field(name)) for name in names]
    else:
        fields = [schema.field(name) for name in names]
    if not differences:
        file_difference = array("q")
    return pa.schema(fields), {"model": model, "differences": differences, "file_difference": file_difference}


def mismatch(manifest: Manifest, paths: Sequence[str], columns: Collection[str] | None = None) -> SchemaMismatch | None:
    """Return the error for columns in which files differ, all of them or some; None if there are none."""
    found = [
        {name: words for name, words in difference.items() if columns is None or name in columns}
        for difference in manifest.differences
    ]
    if not any(found):
        return None
    differing = {
        path: list(found[number].values())
        for path, number in zip(paths, manifest.file_difference, strict=False)
        if number >= 0 and found[number]
    }
    model = paths[manifest.model]
    if model in differing:
        name = next(iter(found[manifest.file_difference[manifest.model]]))
        hint = "give each column a unique name, or choose others with columns=; a batch is a dict of columns"
        return SchemaMismatch(f"{model} has more than one column named {name!r}", hint=hint, file=model)
    lines = [f"  {path}: {', '.join(words)}" for path, words in list(differing.items())[:_SHOWN]]
    if len(differing) > _SHOWN:
        lines.append(f"  and {len(differing) - _SHOWN:,} more files")
    return SchemaMismatch(
        f"{len(differing):,} of {len(paths):,} files do not have the columns of {model}:",
        lines=lines,
        hint=_HINT,
        file=next(iter(differing)),
        model=model,
        files=tuple(differing),
    )


def _differences(model: pa.Schema, other: pa.Schema, empty: bool) -> dict[str, str]:
    """Return a description of each column in which a file differs from another."""
    counts, known = Counter(other.names), Counter(model.names)
    found = {name: f"{name!r} occurs {n} times" for name, n in (known | counts).items() if n > 1}
    if other is model or other.equals(model):
        return found
    found |= {name: f"{name!r} is missing" for name in model.names if name not in counts}
    found |= {field.name: f"{field.name!r} ({field.type}) is extra" for field in other if field.name not in known}
    for field in other:
        if field.name in found:
            continue
        wanted = model.field(field.name).type
        null_column = empty and pa.types.is_null(field.type)
        if not null_column and _relaxed(field.type) != _relaxed(wanted):
            found[field.name] = f"{field.name!r} is {field.type}, not {wanted}"
    return found


def _relaxed_field(field: Any) -> Any:
    return pa.field(field.name, _relaxed(field.type), nullable=True)


def _relaxed(kind: Any) -> Any:
    """Return the type with nulls allowed at every level."""
    types: Any = pa.types  # untyped, for the stubs of Arrow know only a part of this
    if types.is_struct(kind):
        return pa.struct([_relaxed_field(field) for field in kind])
    if types.is_map(kind):
        item: Any = _relaxed_field(kind.item_field)
        return pa.map_(_relaxed(kind.key_type), item)
    if types.is_fixed_size_list(kind):
        return pa.list_(_relaxed_field(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_relaxed_field(kind.value_field))
    if types.is_list(kind):
        return pa.list_(_relaxed_field(kind.value_field))
    return kind
