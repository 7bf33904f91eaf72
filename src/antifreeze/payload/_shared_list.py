"""Large lists of plain values, stored once for all workers: each item is made when it is asked for.

Problem. A Python list of a million paths costs a copy in every worker that reads it, also under fork: to read an object
is to write its reference count, and the kernel copies the page. Only memory without Python objects stays shared.

So a list of at least ``LARGE`` items that are all texts, bytes, numbers, or tuples of these, each place with one type,
is stored as columns, in the payload's memory, which all workers map. A worker gets a ``SharedList`` in its place. It
behaves as the list does, and ``isinstance`` takes it for one. Items are equal to those of the list, and of the same
types; they are immutable, so that it makes no difference that each access makes another one. Whatever else is done to
it (to sort it, to append, to compare it) first makes a list of it in that worker.

Guarantees. It is no subclass of ``list``: native code that reads the memory of lists would find an empty one. Such code
checks for a list first, and raises ``TypeError`` or asks item by item. Nothing reads other data without a word.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, NamedTuple, Self

import numpy as np

LARGE = 50_000
"""Below this, a copy in each worker is a few megabytes."""
_MOST_DEPTH = 4
_AT_ONCE = 1024
_NUMBERS: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_}
_FORMATS: dict[type, str] = {int: "q", float: "d", bool: "?"}


class Column(NamedTuple):
    """The values at one place of all items."""

    kind: type
    parts: tuple[Any, ...]
    """Numbers: one array. Texts, bytes: where each ends, and all of them in a row. Tuples: a column for each place."""


class SentList(NamedTuple):
    """A list as it travels: its columns without their buffers, which are the last of the payload's."""

    column: Column
    length: int

    @property
    def num_buffers(self) -> int:
        """How many buffers its columns have."""
        return len(buffers_of(self.column))

    def rebuilt(self, buffers: Iterator[Any]) -> SharedList:
        """Return the list over its buffers."""
        return SharedList(with_buffers(self.column, buffers), self.length)


def encode(items: list[Any], depth: int = 0) -> Column | None:
    """Return a list as columns, or None if it has to be pickled."""
    kinds = set(map(type, items))
    kind = kinds.pop()
    if kinds or depth > _MOST_DEPTH:
        return None
    if kind in _NUMBERS:
        try:
            return Column(kind, (np.fromiter(items, _NUMBERS[kind], len(items)),))
        except OverflowError:
            return None
    if kind is str or kind is bytes:
        return _encode_texts(kind, items)
    if kind is tuple and set(map(len, items)) == {size := len(items[0])} and size:
        columns = [encode(list(map(operator.itemgetter(place), items)), depth + 1) for place in range(size)]
        return None if None in columns else Column(tuple, tuple(columns))
    return None


def _encode_texts(kind: type, items: list[Any]) -> Column | None:
    joined = kind().join(items)
    if kind is str and not joined.isascii():
        try:
            items = [item.encode() for item in items]
        except UnicodeEncodeError:  # half of a surrogate pair, as in names of files that are no UTF-8
            return None
        joined = b"".join(items)
    data = joined.encode() if isinstance(joined, str) else joined
    ends = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=ends[1:])
    return Column(kind, (ends, np.frombuffer(data, np.uint8)))


def buffers_of(column: Column) -> list[Any]:
    """Return the arrays of a column, in the order in which ``with_buffers`` takes them."""
    if column.kind is tuple:
        return [buffer for part in column.parts for buffer in buffers_of(part)]
    return list(column.parts)


def with_buffers(column: Column, buffers: Iterator[Any]) -> Column:
    """Return the column over other buffers, or over none while it travels."""
    if column.kind is tuple:
        return Column(tuple, tuple(with_buffers(part, buffers) for part in column.parts))
    return Column(column.kind, tuple(next(buffers) for _ in column.parts))


def _getter(column: Column) -> Callable[[int], Any]:
    """Return a function from a number to the value with that number."""
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
    if len(getters) == 2:  # the most common: what is read, and its label
        first, second = getters
        return lambda number: (first(number), second(number))
    return lambda number: tuple([getter(number) for getter in getters])


class SharedList(MutableSequence[Any]):
    """A list whose items are made from columns in shared memory when they are asked for."""

    __slots__ = ("_get", "_items", "_length")

    def __init__(self, column: Column, length: int) -> None:
        self._get, self._length = _getter(column), length
        self._items: list[Any] | None = None
        """All items, once something was done that needs them."""

    @property  # type: ignore[misc]  # isinstance() asks for it
    def __class__(self) -> type:
        return list

    def __len__(self) -> int:
        return self._length if self._items is None else len(self._items)

    def __getitem__(self, place: Any) -> Any:
        if self._items is not None:
            return self._items[place]
        if isinstance(place, slice):
            return [self._get(number) for number in range(*place.indices(self._length))]
        number = place if type(place) is int else operator.index(place)
        if number < 0:
            number += self._length
        if not 0 <= number < self._length:
            raise IndexError("list index out of range")
        return self._get(number)

    def __iter__(self) -> Iterator[Any]:
        start = 0
        while start < len(self):  # Order: asked each time, for a list may grow while it is iterated over
            some = self[start : start + _AT_ONCE]
            yield from some
            start += len(some)

    def _all(self) -> list[Any]:
        if self._items is None:
            self._items = list(self)
        return self._items

    def __setitem__(self, place: Any, value: Any) -> None:
        self._all()[place] = value

    def __delitem__(self, place: Any) -> None:
        del self._all()[place]

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


# What a list can do besides. Those of MutableSequence would work, in loops.
for _name in (
    *("__add__", "__contains__", "__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__"),
    *("__reversed__", "__rmul__", "append", "clear", "copy", "count", "extend", "index", "pop", "remove", "reverse"),
    "sort",
):
    setattr(SharedList, _name, _delegated(_name))
SharedList.__abstractmethods__ = frozenset()
