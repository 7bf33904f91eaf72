"""Torch's ``default_collate`` and ``default_convert``, also for processes in which torch is not loaded.

A worker process imports torch only if the user's code does. Without it, whatever would be a tensor is an ``AsTensor``
around a NumPy array; the structure, the dtypes, the values and the errors are torch's.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from antifreeze.worker._collate_diagnosis import explain
from antifreeze.worker._numpy_collate import AsTensor, are_alike, as_array, doubles, numbers, stack, stack_alike

__all__ = ["AsTensor", "collate_arrays", "convert_arrays", "default_collate", "default_convert", "explain"]

_TEXT_OR_OBJECT = re.compile("[SaUO]")


_found: dict[str, Any] = {}


def _from_torch(name: str) -> Any:
    """Return a function of ``torch.utils.data`` if that is loaded; it is never imported from here."""
    function = _found.get(name)
    if function is None:
        function = _found[name] = getattr(sys.modules.get("torch.utils.data"), name, None)
    return function


def default_collate(samples: Sequence[Any]) -> Any:
    """Return the samples as one batch, as torch's ``default_collate`` does."""
    return (_from_torch("default_collate") or collate_arrays)(samples)


def default_convert(sample: Any) -> Any:
    """Return a sample with its arrays as tensors, as torch's ``default_convert`` does."""
    return (_from_torch("default_convert") or convert_arrays)(sample)


def collate_arrays(samples: Sequence[Any]) -> Any:
    """Return the samples as one batch, with ``AsTensor`` where torch returns a tensor."""
    first = samples[0]
    if isinstance(first, np.ndarray):
        if _TEXT_OR_OBJECT.search(first.dtype.str):
            raise _unsupported(first.dtype)
        if are_alike(samples):
            return AsTensor(stack_alike(samples, first.dtype))
        return AsTensor(stack([as_array(sample) for sample in samples]))
    if isinstance(first, np.bool_ | np.number):
        return AsTensor(numbers(samples))
    if isinstance(first, float):
        return AsTensor(doubles(samples))
    if isinstance(first, int):
        return AsTensor(numbers(samples))
    if isinstance(first, str | bytes):
        return samples
    if isinstance(first, Mapping):
        return _like_mapping(first, {key: collate_arrays([sample[key] for sample in samples]) for key in first})
    if isinstance(first, Sequence):
        return _collate_sequences(first, samples)
    raise _unsupported(type(first))


def _unsupported(found: object) -> TypeError:
    return TypeError(
        f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {found}"
    )


def _collate_sequences(first: Sequence[Any], samples: Sequence[Any]) -> Any:
    if _is_namedtuple(first):
        return type(first)(*map(collate_arrays, zip(*samples, strict=False)))
    size = len(first)
    if not all(len(sample) == size for sample in samples):
        raise RuntimeError("each element in list of batch should be of equal size")
    return _like_sequence(first, [collate_arrays(column) for column in zip(*samples, strict=False)])


def convert_arrays(sample: Any) -> Any:
    """Return the sample with ``AsTensor`` around its arrays; everything else is unchanged."""
    kind = type(sample)
    if kind.__module__ == "numpy" and kind.__name__ not in ("str_", "string_"):
        if kind is np.ndarray and _TEXT_OR_OBJECT.search(sample.dtype.str):
            return sample
        return AsTensor(as_array(sample))
    if isinstance(sample, Mapping):
        return _like_mapping(sample, {key: convert_arrays(sample[key]) for key in sample})
    if _is_namedtuple(sample):
        return kind(*map(convert_arrays, sample))
    if isinstance(sample, Sequence) and not isinstance(sample, str | bytes):
        return _like_sequence(sample, [convert_arrays(member) for member in sample])
    return sample


def _is_namedtuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _like_mapping(first: Mapping[Any, Any], members: dict[Any, Any]) -> Any:
    """Return the members in a mapping of the type of ``first``, or in a dict if that fails."""
    kind: Any = type(first)
    if kind is dict:
        return members
    try:
        if not isinstance(first, MutableMapping):
            return kind(members)
        # A copy keeps other attributes of the type, such as a default factory.
        clone = copy.copy(first)
        clone.update(members)
    except TypeError:
        return members
    return clone


def _like_sequence(first: Sequence[Any], members: list[Any]) -> Any:
    """Return the members in a sequence of the type of ``first``, or in a list: always for tuples, as in torch."""
    kind: Any = type(first)
    if kind is list or isinstance(first, tuple):
        return members
    try:
        if not isinstance(first, MutableSequence):
            return kind(members)
        clone = copy.copy(first)
        for index, member in enumerate(members):
            clone[index] = member
    except TypeError:
        return members
    return clone
