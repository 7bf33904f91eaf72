"""A list that is stored as columns behaves as the list does, whatever is done to it."""

from __future__ import annotations

import copy
import json
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antifreeze.payload._shared_list import SharedList, encode

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
VALUES = [TEXTS, st.binary(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.booleans()]
ITEMS = st.recursive(
    st.sampled_from(VALUES),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda kinds: st.tuples(*kinds)),
    max_leaves=4,
)
LISTS = ITEMS.flatmap(lambda item: st.lists(item, min_size=1, max_size=20))


def shared(items: list[Any]) -> SharedList:
    """Return what a worker gets: the arrays of the column travel beside the pickle."""
    column, buffers = encode(items), list[pickle.PickleBuffer]()
    assert column is not None
    pickled = pickle.dumps(column, protocol=5, buffer_callback=buffers.append)
    return SharedList(pickle.loads(pickled, buffers=buffers))  # noqa: S301


def types_of(value: Any) -> Any:
    return [type(value), *map(types_of, value)] if isinstance(value, tuple) else type(value)


@given(LISTS)
def test_items_are_equal_and_of_the_same_types(items: list[Any]) -> None:
    """From both ends, in slices, and in a loop."""
    found = shared(items)

    assert [found[number] for number in range(-len(items), len(items))] == items + items
    assert list(found) == items
    assert types_of(tuple(found)) == types_of(tuple(items))
    assert found[1::2] == items[1::2]
    assert found[::-1] == items[::-1]
    assert len(found) == len(items)


@pytest.mark.parametrize(
    "items",
    [
        ["a", 1],
        [1, True],
        [None],
        [{}],
        [[1]],
        [(1,), (1, 2)],
        [()],
        [2**63],
        [(1, 2**70)],
        ["\ud800"],
        [np.int64(1)],
        [(1, [2])],
        [type("Text", (str,), {})("a")],
    ],
    ids=repr,
)
def test_what_cannot_be_stored_as_columns_is_left_to_pickle(items: list[Any]) -> None:
    """Mixed, mutable, too large, of other types: nothing is converted."""
    assert encode(items) is None


def test_not_a_number_stays_so() -> None:
    """Bit for bit, it is a float like any other."""
    assert np.isnan(shared([1.0, float("nan")])[1])


PAIRS = [("b", 2), ("a", 1), ("ü", 3), ("a", 1)]

READS: dict[str, Callable[[Any], Any]] = {
    "contains": lambda found: (("a", 1) in found, ("c", 1) in found),
    "count": lambda found: found.count(("a", 1)),
    "index": lambda found: found.index(("ü", 3)),
    "reversed": lambda found: list(reversed(found)),
    "sorted": sorted,
    "repr": repr,
    "str": str,
    "equal": lambda found: (found == PAIRS, operator.eq(PAIRS, found), found != PAIRS, found == []),
    "less": lambda found: (found < [("z", 0)], found >= [("a", 0)]),
    "add": lambda found: operator.add(found, [1]),
    "radd": lambda found: operator.add([1], found),
    "mul": lambda found: (found * 2, 2 * found),
    "copy": lambda found: (found.copy(), copy.copy(found), copy.deepcopy(found)),
    "pickle": lambda found: pickle.loads(pickle.dumps(found)),  # noqa: S301  we wrote it
    "bool": bool,
    "unpacked": lambda found: [*found],
    "index by numpy": lambda found: found[np.int64(1)],
    "index by tensor": lambda found: found[torch.tensor(2)],
    "arrow": lambda found: pa.array([pair[0] for pair in found]).to_pylist(),
    "isinstance": lambda found: isinstance(found, list),
    "dict": dict,
    "zip": lambda found: list(zip(found, found, strict=True)),
}


@pytest.mark.parametrize("name", READS)
def test_it_reads_as_a_list(name: str) -> None:
    """Results are equal, and so are their types."""
    found, expected = READS[name](shared(PAIRS)), READS[name](list(PAIRS))

    assert found == expected
    assert type(found) is type(expected)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda found: found.append(1),
    "extend": lambda found: found.extend([1, 2]),
    "insert": lambda found: found.insert(1, "x"),
    "pop": lambda found: found.pop(),
    "remove": lambda found: found.remove(("a", 1)),
    "clear": lambda found: found.clear(),
    "sort": lambda found: found.sort(reverse=True),
    "sort by key": lambda found: found.sort(key=lambda pair: pair[1]),
    "reverse": lambda found: found.reverse(),
    "set": lambda found: found.__setitem__(0, "x"),
    "set slice": lambda found: found.__setitem__(slice(0, 2), [1]),
    "delete": lambda found: found.__delitem__(-1),
    "iadd": lambda found: found.__iadd__([1]) is found,
    "imul": lambda found: found.__imul__(2) is found,
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_as_a_list(name: str) -> None:
    """In this process, as what a worker writes is its own."""
    found, expected = shared(PAIRS), list(PAIRS)

    assert CHANGES[name](found) == CHANGES[name](expected)
    assert list(found) == expected
    assert len(found) == len(expected)
    assert found[:2] == expected[:2]


@pytest.mark.parametrize("place", [4, -5, 2**70])
def test_an_index_out_of_range_is_an_error(place: int) -> None:
    """Loops of old, without an iterator, end by it."""
    with pytest.raises(IndexError):
        shared(PAIRS)[place]


@pytest.mark.parametrize("place", ["1", 1.0, None])
def test_what_is_no_index_is_an_error(place: Any) -> None:
    """As in a list."""
    with pytest.raises(TypeError):
        shared(PAIRS)[place]


def test_it_cannot_be_hashed() -> None:
    """As a list cannot."""
    with pytest.raises(TypeError):
        hash(shared(PAIRS))


def test_native_code_that_reads_the_memory_of_lists_refuses_it() -> None:
    """An error, never an empty list: it is no subclass."""
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(shared([1, 2]))
    with pytest.raises(TypeError):
        list.__len__(shared([1, 2]))  # type: ignore[arg-type]


def test_libraries_read_it_item_by_item() -> None:
    """Those that ask what it is, and those that take any sequence."""
    found = shared([1, 2, 3])

    assert np.array(found).tolist() == [1, 2, 3]
    assert torch.tensor(found).tolist() == [1, 2, 3]
    assert pa.array(found).to_pylist() == [1, 2, 3]
    match found:
        case [first, *_]:
            assert first == 1
        case _:
            raise AssertionError
