"""Applies the trainer's replacements of library functions in a worker: a fork would have inherited them.

A replacement often calls the original by another name. In every process that applies the replacement, the original's
import path leads to the replacement, so originals are sent as a reference to the previous value (``original``).
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

from antifreeze.core import get_logger
from antifreeze.payload._inspection import class_members, module_members
from antifreeze.payload._when_imported import when_imported

logger = get_logger()

_MISSING = object()
_originals: dict[tuple[str, str], Any] = {}
_applied: dict[tuple[str, str], Patch] = {}


class Patch(NamedTuple):
    """A replacement of what a module had when it was imported."""

    module: str
    name: str
    """``Class.name`` for methods."""
    blob: bytes
    """Its pickle, loaded only when its module is imported."""


def apply_patches(patches: Iterable[Patch]) -> None:
    """Apply patches now, or when their module is imported; restore what is no longer replaced.

    A process may call this twice: as a template, and after it was forked as a worker.
    """
    latest = {(patch.module, patch.name): patch for patch in patches}
    for key in _applied.keys() - latest.keys():
        del _applied[key]
        _restore(*key)
    for key, patch in latest.items():
        if _applied.get(key) == patch:
            continue
        _applied[key] = patch
        if patch.module in sys.modules:
            _apply(patch)
        else:
            when_imported(patch.module, functools.partial(_apply, patch))


def _apply(patch: Patch) -> None:
    key = patch.module, patch.name
    if _applied.get(key) is not patch:  # it was superseded before the module was imported
        return
    try:
        owner, name = _owner(*key)
        # Order: before the replacement is loaded, which may refer to it.
        _originals.setdefault(key, _members(owner).get(name, _MISSING))
        setattr(owner, name, pickle.loads(patch.blob))  # noqa: S301  the trainer's own objects
    except Exception as error:  # noqa: BLE001  border: classes that cannot be changed, code that cannot be rebuilt
        logger.warning(
            "antifreeze: %s.%s was replaced in the trainer, but could not be replaced in a worker: %s: %s",
            *(*key, type(error).__name__, error),
        )


def _restore(module: str, name: str) -> None:
    found = _originals.pop((module, name), None)
    if found is None:  # its module was never imported
        return
    owner, name = _owner(module, name)
    if found is _MISSING:
        delattr(owner, name)
    else:
        setattr(owner, name, found)


def _owner(module: str, name: str) -> tuple[Any, str]:
    kind, _, attribute = name.rpartition(".")
    found = sys.modules[module]
    return (module_members(found)[kind] if kind else found), attribute


def _members(owner: Any) -> Mapping[str, Any]:
    return module_members(owner) if isinstance(owner, ModuleType) else class_members(owner)


def original(module: str, name: str) -> Any:
    """Return what a module had under a name before it was replaced."""
    imported = importlib.import_module(module)
    found = _originals.get((module, name), _MISSING)
    return attrgetter(name)(imported) if found is _MISSING else getattr(found, "__func__", found)
