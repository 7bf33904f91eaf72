"""Maps, lists of structs and what else has no array form: plain Python objects, one per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.types as pt

from antifreeze.formats._fills import Misfit, python_fill
from antifreeze.formats._leaves import ArrowArray, ArrowType, is_listy, plain
from antifreeze.formats._scalars import NullFound, unwrapped

Walk = Callable[[Any], Any]


def _refuse() -> Any:
    raise NullFound


def _list_walk(item: Walk, fill: object) -> Walk:
    def walk(value: Any) -> Any:
        if value is None:
            return [] if fill is not None else _refuse()
        return [item(part) for part in value]

    return walk


def _map_walk(key: Walk, item: Walk, fill: object) -> Walk:
    def walk(value: Any) -> Any:
        if value is None:
            return [] if fill is not None else _refuse()
        return [(key(name), item(part)) for name, part in value]

    return walk


def _struct_walk(fields: list[tuple[str, Walk]], fill: object) -> Walk:
    def walk(value: Any) -> Any:
        if value is None:
            return {name: field(None) for name, field in fields} if fill is not None else _refuse()
        return {name: field(value[name]) for name, field in fields}

    return walk


def _scalar_walk(fill: object) -> Walk:
    def walk(value: Any) -> Any:
        if value is None:
            return fill if fill is not None else _refuse()
        return value

    return walk


def _walk(arrow_type: ArrowType, fill: object) -> Walk:
    """Return a function that checks an object of the type for None, or fills it."""
    arrow_type = plain(arrow_type)
    if pt.is_map(arrow_type):
        return _map_walk(_walk(arrow_type.key_type, fill), _walk(arrow_type.item_type, fill), fill)
    if is_listy(arrow_type):
        return _list_walk(_walk(arrow_type.value_type, fill), fill)
    if pt.is_struct(arrow_type):
        fields = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        return _struct_walk([(field.name, _walk(field.type, fill)) for field in fields], fill)
    if fill is None or pt.is_null(arrow_type):
        return _scalar_walk(fill)
    try:
        return _scalar_walk(python_fill(arrow_type, fill))
    except Misfit:
        # One fill value cannot suit every type inside; where it does not, a null stays an error.
        return _scalar_walk(None)


def objects(arrow_type: ArrowType, fill: object) -> Callable[[ArrowArray], list[Any]]:
    """Return a function from an array of the type to one Python object per row."""
    walk = _walk(arrow_type, fill)
    return lambda array: [walk(value) for value in unwrapped(array).to_pylist()]
