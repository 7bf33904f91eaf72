"""Decides what each Arrow type becomes: one leaf per column, or per innermost field of a struct column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from antifreeze.core import ConfigError

# Pyarrow has no type annotations, and third-party stubs know only the base classes, which
# have neither values nor fields. These names state the intent.
ArrowArray = Any
ArrowType = Any
_Node = tuple[tuple[str, ...], tuple[int, ...], ArrowType]
"""Names, numbers and type, as in ``Leaf``."""


class LeafKind(Enum):
    """What the array of a leaf holds; its first axis is always rows."""

    DENSE = "dense"
    """Numbers or booleans, ``[n, *shape]``."""
    TIME = "time"
    """``datetime64`` or ``timedelta64``, ``[n, *shape]``."""
    RAGGED = "ragged"
    """A 1-D object array: one ndarray per row, or (lists of lists) a list of ndarrays per row."""
    OBJECT = "object"
    """A 1-D object array of Python objects: str, bytes, lists of str, dicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array of a block, and its path in the user's batch."""

    key: str
    """Unique in the block. The column's name, or the path joined by dots."""
    path: tuple[str, ...]
    """The column's name, then the names of the struct fields below it."""
    steps: tuple[int, ...]
    """The same as numbers: the index of the column, then of the fields."""
    kind: LeafKind
    arrow_type: ArrowType
    """As the file has it, dictionaries and extension types included."""
    dtype: np.dtype[Any]
    """Of the values, at the bottom of all lists; ``object`` for OBJECT."""
    shape: tuple[int, ...] = ()
    """DENSE and TIME: the shape of one row. RAGGED: the shape of one item of the innermost ragged list."""
    depth: int = 0
    """List levels whose length differs from row to row; 0 unless the leaf is RAGGED or OBJECT."""


def plain(arrow_type: ArrowType) -> ArrowType:
    """Return the type without its wrappings: dictionaries by their values, extensions by their storage."""
    while True:
        if pt.is_dictionary(arrow_type):
            arrow_type = arrow_type.value_type
        elif isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        else:
            return arrow_type


_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def is_listy(arrow_type: ArrowType) -> bool:
    """Whether the type is one of Arrow's five kinds of list."""
    return any(check(arrow_type) for check in _LISTS)


def levels(arrow_type: ArrowType) -> tuple[tuple[int | None, ...], ArrowType]:
    """Return the length of each list level, outermost first (None: it varies), and the plain type below."""
    sizes: list[int | None] = []
    inner = plain(arrow_type)
    while is_listy(inner):
        sizes.append(inner.list_size if pt.is_fixed_size_list(inner) else None)
        inner = plain(inner.value_type)
    return tuple(sizes), inner


_TEXTS = (
    pt.is_string,
    pt.is_large_string,
    pt.is_string_view,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_binary_view,
    pt.is_fixed_size_binary,
)


def is_text(arrow_type: ArrowType) -> bool:
    """Whether the type is one of Arrow's seven kinds of string and binary."""
    return any(check(arrow_type) for check in _TEXTS)


def dtype_of(arrow_type: ArrowType) -> np.dtype[Any] | None:
    """Return the dtype of a plain scalar type; None for nested types and those that NumPy has no word for."""
    # Tried: ``arrow_type.to_pandas_dtype()``. Before pyarrow 26 it needs pandas.
    if pt.is_boolean(arrow_type):
        return np.dtype(np.bool_)
    if pt.is_integer(arrow_type) or pt.is_floating(arrow_type):
        kind = "f" if pt.is_floating(arrow_type) else "i" if pt.is_signed_integer(arrow_type) else "u"
        return np.dtype(f"{kind}{arrow_type.bit_width // 8}")
    if pt.is_decimal(arrow_type):
        return np.dtype(np.float64)
    if pt.is_date32(arrow_type):
        return np.dtype("M8[D]")
    if pt.is_date64(arrow_type):
        return np.dtype("M8[ms]")
    if pt.is_timestamp(arrow_type):
        return np.dtype(f"M8[{arrow_type.unit}]")
    if pt.is_time(arrow_type) or pt.is_duration(arrow_type):
        return np.dtype(f"m8[{arrow_type.unit}]")
    return np.dtype(object) if is_text(arrow_type) else None


def _dtype_of_nulls(fill: object) -> np.dtype[Any]:
    """Return the dtype of a column of the null type, which has no other type than that of its fill value."""
    dtype = np.asarray(fill).dtype
    return dtype if dtype.kind in "biufmM" else np.dtype(object)


def _checked(key: str, shape: tuple[int, ...], sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    fits = len(shape) == len(sizes) and all(size in (None, want) for want, size in zip(shape, sizes, strict=True))
    if not fits:
        raise ConfigError(
            f'column "{key}" cannot have rows of shape {shape}: its lists are {len(sizes)} deep, of lengths '
            f"{tuple('any' if size is None else size for size in sizes)}",
            argument="shapes",
            column=key,
        )
    return tuple(shape)


def _inner_shape(sizes: tuple[int | None, ...]) -> tuple[int, ...]:
    """Return the fixed lengths below all varying ones; above a varying one, a fixed length is a ragged level."""
    num_varying = next((depth for depth in range(len(sizes), 0, -1) if sizes[depth - 1] is None), 0)
    return tuple(size for size in sizes[num_varying:] if size is not None)


def _leaf(node: _Node, key: str, shape: tuple[int, ...] | None, fill: object) -> Leaf:
    path, steps, arrow_type = node
    sizes, inner = levels(arrow_type)
    dtype = _dtype_of_nulls(fill) if pt.is_null(inner) and not sizes else dtype_of(inner)
    kind, depth = LeafKind.OBJECT, len(sizes)
    if dtype is None:
        depth = 0
    elif dtype.kind != "O":
        shape = _inner_shape(sizes) if shape is None else _checked(key, shape, sizes)
        depth -= len(shape)
        kind = LeafKind.RAGGED if depth else LeafKind.TIME if dtype.kind in "mM" else LeafKind.DENSE
    return Leaf(
        key=key,
        path=path,
        steps=steps,
        kind=kind,
        arrow_type=arrow_type,
        dtype=np.dtype(object) if dtype is None else dtype,
        shape=() if kind is LeafKind.OBJECT or shape is None else shape,
        depth=depth,
    )


def _nodes(path: tuple[str, ...], steps: tuple[int, ...], arrow_type: ArrowType) -> Iterator[_Node]:
    """Yield a node, or the leaves below it if it is a struct."""
    inner = plain(arrow_type)
    if not pt.is_struct(inner):
        yield path, steps, arrow_type
        return
    for index in range(inner.num_fields):
        child = inner.field(index)
        yield from _nodes((*path, child.name), (*steps, index), child.type)


def is_tree(leaf: Leaf) -> bool:
    """Whether the rows can only be had as Python objects, made one by one."""
    inner = levels(leaf.arrow_type)[1]
    return leaf.kind is LeafKind.OBJECT and dtype_of(inner) is None and not pt.is_null(plain(leaf.arrow_type))


def named(table: Mapping[str, Any], path: tuple[str, ...]) -> tuple[str, Any] | None:
    """Return the entry for the path or for the nearest struct above it."""
    for end in range(len(path), 0, -1):
        name = ".".join(path[:end])
        if name in table:
            return name, table[name]
    return None


def leaves_of(
    schema: pa.Schema, shapes: Mapping[str, tuple[int, ...]], fills: Mapping[str, object] | object
) -> tuple[Leaf, ...]:
    """Return the leaves of all columns, in the order of the columns and of their fields."""
    leaves: list[Leaf] = []
    taken = set(schema.names)
    for index, field in enumerate(schema):
        for node in _nodes((field.name,), (index,), field.type):
            path = node[0]
            key = ".".join(path)
            # A column may be called "s.x" next to a struct "s" with a field "x"; the block needs two keys.
            while len(path) > 1 and key in taken:
                key += "#"
            taken.add(key)
            entry = named(fills, path) if isinstance(fills, Mapping) else ("", fills)
            leaves.append(_leaf(node, key, shapes.get(key), entry[1] if entry else None))
    return tuple(leaves)
