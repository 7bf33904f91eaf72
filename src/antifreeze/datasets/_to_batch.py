"""The last step of a batch, in NumPy: from a block's flat arrays to the dict that the user gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antifreeze.core import ConfigError, DataError, RaggedColumn, UnknownColumn
from antifreeze.formats import Leaf, LeafKind

Array = NDArray[Any]
Block = Mapping[str, Array]


Finish = Callable[..., dict[str, Any]]
"""Makes the user's batch of a block, or of its rows from ``start`` to ``stop``."""
_Make = Callable[[Array], Any]


def finisher(leaves: Sequence[Leaf], pad: object | Mapping[str, object] | None = None) -> Finish:
    """Return a function from a block to a batch of NumPy arrays.

    DENSE and TIME leaves stay as they are, OBJECT leaves become lists, and so do RAGGED ones unless ``pad`` has
    a value for them: then they become one array ``[rows, longest, ...]``. ``pad`` is one value for all ragged
    columns, or one per column by name.
    """
    return assemble(leaves, [_make(leaf, padding_of(leaf, leaves, pad)) for leaf in leaves])


def _make(leaf: Leaf, padding: Any) -> _Make | None:
    if leaf.kind is LeafKind.RAGGED and padding is not None:
        return lambda rows: padded(rows, leaf, padding)
    # Not list(): for an object array tolist() is eight times as fast, and the same.
    return np.ndarray.tolist if leaf.kind is LeafKind.RAGGED or leaf.kind is LeafKind.OBJECT else None


def assemble(leaves: Sequence[Leaf], makes: Sequence[_Make | None]) -> Finish:
    """Return a function that makes each leaf's value (None: leaves it as it is) and nests those of structs.

    Called for every batch, so the flat case is one comprehension over what is known beforehand.
    """
    steps = [(leaf.key, make or _unchanged) for leaf, make in zip(leaves, makes, strict=True)]
    if all(len(leaf.path) == 1 for leaf in leaves):
        return lambda block, start=0, stop=None: {key: make(block[key][start:stop]) for key, make in steps}

    def finish(block: Block, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        batch: dict[str, Any] = {}
        for leaf, (key, make) in zip(leaves, steps, strict=True):
            level = batch
            for name in leaf.path[:-1]:
                level = level.setdefault(name, {})
            level[leaf.path[-1]] = make(block[key][start:stop])
        return batch

    return finish


def _unchanged(array: Array) -> Array:
    return array


def padding_of(leaf: Leaf, leaves: Sequence[Leaf], pad: object | Mapping[str, object] | None) -> Any:
    """Return the padding of a leaf as a value of its dtype; None if it is not padded."""
    value = pad
    if isinstance(pad, Mapping):
        _check_names(leaves, pad)
        value = pad.get(leaf.key)
    if value is None or leaf.kind is not LeafKind.RAGGED:
        return None
    given = np.asarray(value)
    padding = _cast(given, leaf.dtype)
    if padding is None:
        raise ConfigError(
            f'pad: {value!r} is no value of column "{leaf.key}", whose values are {leaf.dtype}',
            hint=f'give each ragged column its own: pad={{"{leaf.key}": ...}}',
            argument="pad",
            column=leaf.key,
        )
    return padding


def _cast(given: Array, dtype: np.dtype[Any]) -> Any:
    """Return the value in the dtype, or None if it would become another value."""
    if given.ndim or (dtype.kind in "mM" and given.dtype.kind not in ("iu" + dtype.kind)):
        return None
    with np.errstate(all="ignore"):
        try:
            cast = given.astype(dtype)
        except (TypeError, ValueError, OverflowError):
            return None
    if dtype.kind in "fmM":
        return cast[()] if given.dtype.kind in "biufmM" else None
    return cast[()] if given.dtype.kind in "biuf" and cast == given else None


def _check_names(leaves: Iterable[Leaf], pad: Mapping[str, object]) -> None:
    unknown = set(pad) - {leaf.key for leaf in leaves}
    if unknown:
        name = min(unknown)
        raise UnknownColumn(f'pad names column "{name}", which the data does not have', column=name, argument="pad")


def _longest(rows: Iterable[Any], depth: int) -> list[int]:
    """Return the greatest length at each ragged level."""
    longest = [0] * depth
    for row in rows:
        longest[0] = max(longest[0], len(row))
        if depth > 1:
            longest[1:] = map(max, longest[1:], _longest(row, depth - 1))
    return longest


def _copy_rows(target: Array, rows: Iterable[Any], depth: int) -> None:
    for index, row in enumerate(rows):
        if depth > 1:
            _copy_rows(target[index], row, depth - 1)
        else:
            target[index, : len(row)] = row


def padded(rows: Array, leaf: Leaf, padding: Any) -> Array:
    """Return ragged rows as one array ``[rows, longest, ...]``, padded at the end of each list."""
    array: Array = np.full((len(rows), *_longest(rows, leaf.depth), *leaf.shape), padding, leaf.dtype)
    _copy_rows(array, rows, leaf.depth)
    return array


def row_of(batch: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return one row of a batch: ``row[column]`` is what ``batch[column][index]`` gives, structs recursively."""
    return {key: row_of(value, index) if isinstance(value, dict) else value[index] for key, value in batch.items()}


def collate(rows: Sequence[Any]) -> Any:
    """Return rows as one batch of NumPy arrays; the reverse of ``row_of`` over all rows.

    Numbers and arrays are stacked and keep their dtypes, dicts and tuples are collated member by member, anything
    else (str, bytes, lists) becomes a list.
    """
    return _collate(rows, "")


def _collate(rows: Sequence[Any], key: str) -> Any:
    first = rows[0]
    if isinstance(first, Mapping):
        check_keys(rows, key)
        return {name: _collate([row[name] for row in rows], inner_key(key, name)) for name in first}
    if isinstance(first, tuple):
        check_keys(rows, key)
        columns = zip(*rows, strict=True)
        return tuple(_collate(column, inner_key(key, index)) for index, column in enumerate(columns))
    if isinstance(first, np.ndarray):
        check_shapes([np.shape(row) for row in rows], key)
        return np.stack(rows)
    if isinstance(first, bool | int | float | complex | np.number | np.bool_ | np.datetime64 | np.timedelta64):
        return np.array(rows)
    return list(rows)


def inner_key(key: str, name: object) -> str:
    """Return how errors name a member of a row: joined by dots."""
    return f"{key}.{name}" if key else str(name)


def check_keys(rows: Sequence[Any], key: str) -> None:
    """Raise DataError unless all rows are dicts with the keys of the first, or tuples of its length."""
    first = rows[0]
    names = set(first) if isinstance(first, Mapping) else len(first)
    for index, row in enumerate(rows):
        alike = isinstance(row, Mapping) == isinstance(first, Mapping) and hasattr(row, "__len__")
        if alike and (set(row) if isinstance(row, Mapping) else len(row)) == names:
            continue
        place = f' in "{key}"' if key else ""
        found = sorted(map(str, row)) if isinstance(row, Mapping) else f"{type(row).__name__}"
        wanted = sorted(map(str, first)) if isinstance(first, Mapping) else f"{type(first).__name__} of {names}"
        raise DataError(
            f"rows of one batch differ{place}: row 0 has {wanted}, row {index} has {found}",
            hint="return the same members for every sample, or give your own collate_fn",
            column=key,
            row=index,
        )


def check_shapes(shapes: Sequence[tuple[int, ...]], key: str) -> None:
    """Raise RaggedColumn unless all shapes are equal."""
    for index, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RaggedColumn(
                f'rows of different shapes cannot be stacked: "{key}" is {shapes[0]} in row 0 of the batch '
                f"and {shape} in row {index}",
                hint=f'pad the column with pad={{"{key}": 0}}, or give your own collate_fn',
                column=key,
                row=index,
                shapes=(shapes[0], shape),
            )
