"""Whether all files of a dataset have the same columns; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from antifreeze.core import SchemaMismatch
from antifreeze.formats._footers import Footer

_SHOWN = 5
_HINT = "write these files again with the same columns and types, or read them as datasets of their own"


def agreed_schema(paths: Sequence[str], footers: Sequence[Footer]) -> pa.Schema:
    """Return the schema that all files share, in the column order of the first.

    The order of columns and whether they may hold nulls can differ. A file without rows may have a column of type
    null, which is what writers make of an empty column.
    """
    model = next((i for i, footer in enumerate(footers) if sum(footer.group_rows)), 0)
    schema = footers[model].schema
    _refuse_double(paths[model], schema)
    verdicts: dict[tuple[int, bool], list[str]] = {}
    differing: dict[str, list[str]] = {}
    for path, footer in zip(paths, footers, strict=True):
        empty = not any(footer.group_rows)
        # By identity: files with equal schemas share the object, and the footers keep it alive.
        key = (id(footer.schema), empty)
        if key not in verdicts:
            verdicts[key] = _differences(schema, footer.schema, empty)
        if verdicts[key]:
            differing[path] = verdicts[key]
    if differing:
        raise _mismatch(paths[model], len(paths), differing)
    filled = {id(footer.schema): footer.schema for footer in footers if any(footer.group_rows)}
    if not all(field.equals(schema.field(field.name)) for other in filled.values() for field in other):
        # All that is left to differ is where nulls may stand.
        schema = pa.schema([_relaxed_field(field) for field in schema])
    return pa.schema([schema.field(name) for name in footers[0].schema.names])


def _refuse_double(path: str, schema: pa.Schema) -> None:
    double = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if double:
        hint = "give each column a name of its own; a batch is a dict of columns"
        raise SchemaMismatch(f"{path} has more than one column named {double[0]!r}", hint=hint, file=path)


def _differences(model: pa.Schema, other: pa.Schema, empty: bool) -> list[str]:
    if other is model or other.equals(model):
        return []
    found = [f"{name!r} is missing" for name in model.names if name not in other.names]
    found += [f"{field.name!r} ({field.type}) is extra" for field in other if field.name not in model.names]
    found += [f"{name!r} stands {count} times" for name in model.names if (count := other.names.count(name)) > 1]
    for field in other:
        if field.name not in model.names or other.names.count(field.name) > 1:
            continue
        wanted = model.field(field.name).type
        null_column = empty and pa.types.is_null(field.type)
        if not null_column and _relaxed(field.type) != _relaxed(wanted):
            found.append(f"{field.name!r} is {field.type}, not {wanted}")
    return found


def _mismatch(model: str, count: int, differing: dict[str, list[str]]) -> SchemaMismatch:
    lines = [f"{path}: {', '.join(found)}" for path, found in list(differing.items())[:_SHOWN]]
    if len(differing) > _SHOWN:
        lines.append(f"and {len(differing) - _SHOWN:,} more files")
    first = next(iter(differing))
    return SchemaMismatch(
        f"{len(differing):,} of {count:,} files do not have the columns of {model}:\n    " + "\n    ".join(lines),
        hint=_HINT,
        file=first,
        model=model,
        files=tuple(differing),
    )


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
