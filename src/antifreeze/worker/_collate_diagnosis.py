"""Explains why samples cannot be collated into a batch, naming the samples and the member."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any

import numpy as np

from antifreeze.worker._collate import TENSOR_DTYPES

_MAX_VALUES = 1_000_000
"""Values examined before giving up: samples can be lists of millions of numbers, and the error must not take long."""

_MAX_GROUPS = 4

Finding = tuple[bool, str]
"""Whether this alone makes torch's collate fail, and the text. If not, a certain finding elsewhere takes precedence."""


class SampleKind(enum.Enum):
    """The kinds of values that collating distinguishes."""

    NONE = enum.auto()
    NUMBER = enum.auto()
    TEXT = enum.auto()
    MAPPING = enum.auto()
    SEQUENCE = enum.auto()
    ARRAY = enum.auto()
    OTHER = enum.auto()


def explain(samples: Sequence[Any], names: Sequence[str]) -> str | None:
    """Return why the samples cannot be collated, or None if no reason is found.

    ``names[i]`` is the name of ``samples[i]`` in messages. Never raises, whatever the samples do when inspected.
    """
    try:
        findings = list(itertools.islice(_Search(names).column(list(samples), ""), 100))
        findings.sort(key=lambda finding: not finding[0])
        return findings[0][1] if findings else None
    except Exception:  # noqa: BLE001  border: samples are the user's, and an error is already under way
        return None


_KINDS: dict[Any, SampleKind] = {
    NoneType: SampleKind.NONE,
    bool | int | float | complex | np.number | np.bool_: SampleKind.NUMBER,
    str | bytes: SampleKind.TEXT,
    Mapping: SampleKind.MAPPING,
    Sequence: SampleKind.SEQUENCE,
}


def _kind(value: Any) -> SampleKind:
    with contextlib.suppress(Exception):  # border: see explain
        for types, kind in _KINDS.items():
            if isinstance(value, types):
                return kind
        if isinstance(value.shape, tuple) and value.dtype is not None:
            return SampleKind.ARRAY
    return SampleKind.OTHER


class _Search:
    """Walks through the members that have the same path in every sample."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._left = _MAX_VALUES

    def column(self, values: Sequence[Any], path: str) -> Iterator[Finding]:
        """Yield the problems of the values that the samples have at ``path``."""
        self._left -= len(values)
        if self._left < 0 or _is_plain(values):
            return
        kinds = [_kind(value) for value in values]
        if SampleKind.NONE in kinds:
            yield self._nones(values, path)
        elif len(set(kinds)) > 1 or (
            kinds[0] in (SampleKind.ARRAY, SampleKind.OTHER) and len(set(map(type, values))) > 1
        ):
            # Strings are passed through unchecked, so they may be mixed with anything.
            certain = kinds[0] not in (SampleKind.TEXT, SampleKind.OTHER)
            yield certain, self._differ("types", path, [type(value).__name__ for value in values])
        else:
            look = {
                SampleKind.NUMBER: self._numbers,
                SampleKind.MAPPING: self._mappings,
                SampleKind.SEQUENCE: self._sequences,
                SampleKind.ARRAY: self._arrays,
            }.get(kinds[0])
            try:
                yield from look(values, path) if look is not None else ()
            except Exception:  # noqa: BLE001  border: a member that cannot be inspected must not hide others
                return

    def _nones(self, values: Sequence[Any], path: str) -> Finding:
        where = [index for index, value in enumerate(values) if value is None]
        if len(where) == len(values):
            who = self._names[0] if len(values) == 1 else "every sample"
            return False, f"{path} is None in {who}" if path else f"{who} is None"
        who = self._who(where)
        types = Counter(type(value).__name__ for value in values if value is not None)
        others = " or ".join(name for name, _ in types.most_common(3))
        if path:
            return True, f"{path} is None in {who}; in the other samples it is {others}"
        are = "is" if len(where) == 1 else "are"
        return True, f"{who} {are} None; the other samples are {others}"

    def _numbers(self, values: Sequence[Any], path: str) -> Iterator[Finding]:
        if isinstance(values[0], int):
            prefix = f"{path} of " if path else ""
            for name, value in zip(self._names, values, strict=False):
                if isinstance(value, int) and not -(2**63) <= value < 2**63:
                    yield True, f"{prefix}{name} is {value}, which does not fit into 64 bits"
                    return
        yield from self._dtypes([value for value in values if isinstance(value, np.generic)], path, values)

    def _arrays(self, values: Sequence[Any], path: str) -> Iterator[Finding]:
        shapes = [tuple(map(int, value.shape)) for value in values]
        if len(set(shapes)) > 1:
            yield True, self._differ("shapes", path, list(map(str, shapes)))
            return
        yield from self._dtypes(values, path, values)

    def _dtypes(self, arrays: Sequence[Any], path: str, values: Sequence[Any]) -> Iterator[Finding]:
        dtypes = [str(value.dtype) if hasattr(value, "dtype") else type(value).__name__ for value in values]
        of_numpy = [(i, value.dtype) for i, value in enumerate(values) if isinstance(value, np.ndarray | np.generic)]
        unfit = [i for i, dtype in of_numpy if dtype.char not in TENSOR_DTYPES]
        if unfit:
            of = f" of {path}" if path else ""
            yield True, f"the dtype{of} is {dtypes[unfit[0]]} in {self._who(unfit)}, which torch does not support"
        elif not _are_stackable(arrays):
            yield True, self._differ("dtypes", path, dtypes) + "; torch has no dtype for both"

    def _sequences(self, values: Sequence[Any], path: str) -> Iterator[Finding]:
        lengths = [len(value) for value in values]
        if len(set(lengths)) > 1:
            yield True, self._differ("lengths", path, list(map(str, lengths)))
            return
        fields = getattr(values[0], "_fields", None)
        for index, column in enumerate(zip(*values, strict=True)):
            yield from self.column(column, f"{path}.{fields[index]}" if fields else f"{path}[{index}]")
            if self._left < 0:
                return

    def _mappings(self, values: Sequence[Any], path: str) -> Iterator[Finding]:
        key_sets = [set(value) for value in values]
        common = set.intersection(*key_sets)
        yield from self._keys(True, [key for key in values[0] if key not in common], key_sets, path)
        for key in values[0]:
            if key in common:
                yield from self.column(
                    [value[key] for value in values], f"{path}[{_quoted(key)}]" if path else _quoted(key)
                )
        extra = dict.fromkeys(key for value in values for key in value if key not in key_sets[0])
        yield from self._keys(False, list(extra), key_sets, path)

    def _keys(self, certain: bool, keys: Sequence[Any], key_sets: Sequence[set[Any]], path: str) -> Iterator[Finding]:
        if not keys:
            return
        having = [index for index, present in enumerate(key_sets) if keys[0] in present]
        lacking = [index for index, present in enumerate(key_sets) if keys[0] not in present]
        rare = len(having) < len(lacking)
        where = f"is present only in {self._who(having)}" if rare else f"is missing in {self._who(lacking)}"
        more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        of = f" of {path}" if path else ""
        yield certain, f"keys{of} differ: {_quoted(keys[0])}{more} {where}"

    def _who(self, where: Sequence[int]) -> str:
        if len(where) > 2:
            return f"{len(where)} samples (the first: {self._names[where[0]]})"
        return " and ".join(self._names[index] for index in where)

    def _differ(self, what: str, path: str, labels: Sequence[str]) -> str:
        groups: dict[str, list[int]] = {}
        for index, label in enumerate(labels):
            groups.setdefault(label, []).append(index)
        of = f" of {path}" if path else ""
        if len(groups) == len(labels) <= _MAX_GROUPS:
            pairs = zip(self._names, labels, strict=False)
            return f"{what}{of} differ: " + ", ".join(f"{name} is {label}" for name, label in pairs)
        by_size = sorted(groups.items(), key=lambda group: -len(group[1]))
        largest, where = by_size[0]
        said = [f"{largest} for {len(where)} samples" if len(where) > 1 else f"{largest} for {self._who(where)}"]
        said += [f"{label} for {self._who(where)}" for label, where in by_size[1:_MAX_GROUPS]]
        said += [f"{len(groups) - _MAX_GROUPS} others"] * (len(groups) > _MAX_GROUPS)
        return f"{what}{of} differ: " + ", ".join(said)


def _is_plain(values: Sequence[Any]) -> bool:
    """Return True if the values cannot have a problem: a fast path for most columns of long samples."""
    types = set(map(type, values))
    if types == {int}:
        return bool(min(values) >= -(2**63) and max(values) < 2**63)
    return len(types) == 1 and types <= {bool, float, str, bytes}


def _quoted(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _are_stackable(arrays: Sequence[Any]) -> bool:
    """Return True if torch can promote all of them to one dtype. It is loaded if its collate has failed."""
    torch: Any = sys.modules.get("torch")
    names = {str(value.dtype).removeprefix("torch."): None for value in arrays}
    # Raised if torch is not loaded, or there is nothing to promote.
    with contextlib.suppress(AttributeError, TypeError):
        try:
            functools.reduce(torch.promote_types, [getattr(torch, name) for name in names])
        except RuntimeError:
            return False
    return True
