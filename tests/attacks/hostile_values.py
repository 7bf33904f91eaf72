"""Values that nobody would write, and random changes of nested values, both from a seed."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

Path = tuple[Any, ...]


# Functions, not variables: workers take over the variables of modules, so each start of workers would examine them.


@functools.cache
def deep(depth: int = 100_000) -> list[Any]:
    """Return a list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@functools.cache
def deep_dict(depth: int = 50_000) -> dict[str, Any]:
    """Return a dict in a dict in a dict."""
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


CYCLE, LONG_TEXT, LONG_LIST = _cycle(), "x" * 3_000_000, [0] * 200_000
WIDE_DICT = {f"key {number}": number for number in range(100_000)}

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1 << 16, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 10**6, 10**9, 10**18),
    *(10**5000, -(10**5000), float("nan"), float("inf"), -float("inf"), 1.5, 0.0),
    *("", "x", "\0", "²", "1", "infinite", "map", "iterable", "\ud800", LONG_TEXT, b"", b"bytes"),
    *([], {}, (), set(), [[3, 10**9]], [[0, 1]], [0], [None], ["x"], {"x": 1}, {1: 2}, {None: None}),
    *(deep(), CYCLE, deep_dict(), LONG_LIST, WIDE_DICT, object(), len, int),
]


def paths_of(value: Any, path: Path = ()) -> list[Path]:
    """Return where all parts of a nested value are, the value itself included."""
    found = [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        found += paths_of(part, (*path, key))
    return found


def mutated(value: Any, rng: random.Random) -> tuple[Any, Path]:
    """Return a copy of a nested value with one random change, and where that is."""
    value = copy.deepcopy(value)
    path = rng.choice(paths_of(value))
    if not path:
        return (rng.choice(VALUES), path) if rng.random() < 0.2 else (_with_entry(value, rng), path)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = _changed(parent[path[-1]], rng)
    if rng.random() < 0.1:
        del parent[path[-1]]
    return value, path


def _with_entry(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        return value | {
            rng.choice(["extra", "lanes ", "until", "missing", "", "x" * 5000, 1, None]): rng.choice(VALUES)
        }
    return [*value, rng.choice(VALUES)]


def _changed(value: Any, rng: random.Random) -> Any:
    change = rng.random()
    if change < 0.5:
        return rng.choice(VALUES)
    if isinstance(value, dict | list) and change < 0.8:
        return [*value, *value] if isinstance(value, list) and change < 0.6 else _with_entry(value, rng)
    if isinstance(value, bool):
        return rng.choice([not value, int(value), str(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, value * 2, value * 1000 + 1, -value, float(value), str(value)])
    if isinstance(value, str):
        return rng.choice([value[:-1], value + "x", value[::-1], value.upper(), value.encode()])
    return [value]
