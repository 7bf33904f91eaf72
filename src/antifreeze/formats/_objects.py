"""Maps, lists of structs and what else has no array form: plain Python objects, one per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.types as pt

from antifreeze.formats._leaves import ArrowArray, ArrowType, is_listy, plain
from antifreeze.formats._scalars import Misfit, NullFound, python_fill, unwrapped

Walk = Callable[[Any], Any]


def _unless_null(walk: Walk, make_fill: Callable[[], Any] | None) -> Walk:
    """Return a function that fills None, or refuses it, and gives all else to ``walk``."""

    def walk_or_fill(value: Any) -> Any:
        if value is not None:
            return walk(value)
        if make_fill is None:
            raise NullFound
        return make_fill()

    return walk_or_fill


def _scalar_walk(fill: object) -> Walk:
    def walk(value: Any) -> Any:
        if value is None:
            if fill is None:
                raise NullFound
            return fill
        return value

    return walk


def _walk(arrow_type: ArrowType, fill: object) -> Walk:
    """Return a function that checks an object of the type for None, or fills it."""
    arrow_type = plain(arrow_type)
    empty = None if fill is None else list
    if pt.is_map(arrow_type):
        key, item = _walk(arrow_type.key_type, fill), _walk(arrow_type.item_type, fill)
        return _unless_null(lambda value: [(key(name), item(part)) for name, part in value], empty)
    if is_listy(arrow_type):
        item = _walk(arrow_type.value_type, fill)
        return _unless_null(lambda value: [item(part) for part in value], empty)
    if pt.is_struct(arrow_type):
        parts = [arrow_type.field(index) for index in range(arrow_type.num_fields)]
        walks = {part.name: _walk(part.type, fill) for part in parts}
        return _unless_null(
            lambda value: {name: walk(value[name]) for name, walk in walks.items()},
            None if fill is None else lambda: {name: walk(None) for name, walk in walks.items()},
        )
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
