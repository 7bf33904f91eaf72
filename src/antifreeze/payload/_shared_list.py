"""Large lists of plain values, stored once for all workers: items are created on access.

Problem. A Python list of a million paths costs a copy in every worker that reads it, also under fork: reading an object
writes its reference count, and the kernel copies the page. Only memory without Python objects stays shared.

So a list of at least ``LARGE`` items that are all strings, bytes, numbers, or tuples of these, with one type per
position, is stored as columns, in the payload's memory, which all workers map. A worker gets a ``SharedList`` instead.
It behaves like a list, and ``isinstance`` accepts it as one. Items are equal to those of the list, and of the same
types; they are immutable, so it makes no difference that each access creates a new one. Any other operation (sorting,
appending, comparing) first converts it to a list in that worker.

Guarantees. It is not a subclass of ``list``: native code that reads the memory of lists would find an empty one. Such
code checks for a list first, and raises ``TypeError`` or reads item by item. Nothing silently reads wrong data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, NamedTuple, Self

import numpy as np

LARGE = 50_000
"""Below this, a copy in each worker is a few megabytes."""
_MAX_DEPTH = 4
_AT_ONCE = 1024
_NUMBERS: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_}
_FORMATS: dict[type, str] = {int: "q", float: "d", bool: "?"}


class Column(NamedTuple):
    """The values at one position of all items."""

    kind: type
    parts: tuple[Any, ...]
    """Numbers: one array. Strings, bytes: end offsets, and the concatenation. Tuples: a column per position."""


def encode(items: list[Any], depth: int = 0) -> Column | None:
    """Return a list as columns, or None if it has to be pickled."""
    kinds = set(map(type, items))
    kind = kinds.pop()
    if kinds or depth > _MAX_DEPTH:
        return None
    if kind in _NUMBERS:
        try:
            return Column(kind, (np.fromiter(items, _NUMBERS[kind], len(items)),))
        except OverflowError:
            return None
    if kind is str or kind is bytes:
        return _encode_texts(kind, items)
    if kind is tuple and set(map(len, items)) == {size := len(items[0])} and size:
        columns = [encode(list(map(operator.itemgetter(position), items)), depth + 1) for position in range(size)]
        return None if None in columns else Column(tuple, tuple(columns))
    return None


def _encode_texts(kind: type, items: list[Any]) -> Column | None:
    joined = kind().join(items)
    if kind is str and not joined.isascii():
        try:
            items = [item.encode() for item in items]
        except UnicodeEncodeError:  # a lone surrogate, as in file names that are not UTF-8
            return None
        joined = b"".join(items)
    data = joined.encode() if isinstance(joined, str) else joined
    ends = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=ends[1:])
    return Column(kind, (ends, np.frombuffer(data, np.uint8)))


def with_arrays(column: Column, change: Callable[[Any], Any]) -> Column:
    """Return the column over other arrays."""
    if column.kind is tuple:
        return Column(tuple, tuple(with_arrays(part, change) for part in column.parts))
    return Column(column.kind, tuple(map(change, column.parts)))


def _length(column: Column) -> int:
    while column.kind is tuple:
        column = column.parts[0]
    return len(column.parts[0]) - (column.kind not in _NUMBERS)


def _getter(column: Column) -> Callable[[int], Any]:
    """Return a function that maps an index to the value."""
    if column.kind is tuple:
        return _tuples(tuple(map(_getter, column.parts)))
    memory = memoryview(column.parts[-1]).cast("B")
    if column.kind in _FORMATS:
        return memory.cast(_FORMATS[column.kind]).__getitem__  # type: ignore[call-overload, no-any-return]
    ends = memoryview(column.parts[0]).cast("B").cast("q")
    if column.kind is bytes:
        return lambda number: bytes(memory[ends[number] : ends[number + 1]])
    return lambda number: str(memory[ends[number] : ends[number + 1]], "utf-8")


def _tuples(getters: tuple[Callable[[int], Any], ...]) -> Callable[[int], Any]:
    if len(getters) == 2:  # the most common case: path and label
        first, second = getters
        return lambda number: (first(number), second(number))
    return lambda number: tuple([getter(number) for getter in getters])


class SharedList(MutableSequence[Any]):
    """A list whose items are created on access from columns in shared memory."""

    __slots__ = ("_get", "_items", "_length")

    def __init__(self, column: Column) -> None:
        self._get, self._length = _getter(column), _length(column)
        self._items: list[Any] | None = None
        """All items, once an operation needed them."""

    @property  # type: ignore[misc]  # isinstance() asks for it
    def __class__(self) -> type:
        return list

    def __len__(self) -> int:
        return self._length if self._items is None else len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if self._items is not None:
            return self._items[index]
        if isinstance(index, slice):
            return [self._get(number) for number in range(*index.indices(self._length))]
        number = index if type(index) is int else operator.index(index)
        if number < 0:
            number += self._length
        if not 0 <= number < self._length:
            raise IndexError("list index out of range")
        return self._get(number)

    def __iter__(self) -> Iterator[Any]:
        start = 0
        while start < len(self):  # Order: checked each time, because a list may grow during iteration
            some = self[start : start + _AT_ONCE]
            yield from some
            start += len(some)

    def _all(self) -> list[Any]:
        if self._items is None:
            self._items = list(self)
        return self._items

    def __setitem__(self, index: Any, value: Any) -> None:
        self._all()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._all()[index]

    def insert(self, index: Any, value: Any) -> None:
        """Insert an item, as a list does."""
        self._all().insert(index, value)

    def __iadd__(self, other: Iterable[Any]) -> Self:
        self._all().extend(other)
        return self

    def __imul__(self, count: Any) -> Self:
        self._all()[:] = self._all() * count
        return self

    def __radd__(self, other: list[Any]) -> list[Any]:
        return other + self._all()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._all(),)

    def __copy__(self) -> list[Any]:
        return list(self._all())

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return list(self._all())

    __hash__ = None  # type: ignore[assignment]  # as that of a list


def _delegated(name: str) -> Callable[..., Any]:
    def method(self: SharedList, *args: Any, **options: Any) -> Any:
        plain = [each._all() if type(each) is SharedList else each for each in args]
        return getattr(self._all(), name)(*plain, **options)

    method.__name__ = name
    return method


# The other methods of a list. Those of MutableSequence would work, but in loops.
for _name in (
    *("__add__", "__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__"),
    *("__reversed__", "__rmul__", "append", "clear", "copy", "count", "extend", "index", "pop", "remove", "reverse"),
    "sort",
):
    setattr(SharedList, _name, _delegated(_name))
SharedList.__abstractmethods__ = frozenset()
