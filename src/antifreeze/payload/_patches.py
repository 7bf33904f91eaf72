"""Functions of libraries that the trainer has replaced, replaced in a worker too: a fork would have inherited them.

What a replacement calls is often the original, by another name. That name leads to the replacement in every process
that has it, so an original is sent as what was there before (``original``).
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
    """Something that stands in a module in place of what the module had when it was imported."""

    module: str
    name: str
    """Methods are called ``Class.name``."""
    blob: bytes
    """A pickle of it, which is loaded when its module is imported, and not at all if it is not."""


def apply_patches(patches: Iterable[Patch]) -> None:
    """Replace what is there already, and the rest when its module is imported; put back what is replaced no more.

    A process may get these twice: once when it was a template, and once when it has become a worker.
    """
    latest = {(patch.module, patch.name): patch for patch in patches}
    for place in _applied.keys() - latest.keys():
        del _applied[place]
        _put_back(*place)
    for place, patch in latest.items():
        if _applied.get(place) == patch:
            continue
        _applied[place] = patch
        if patch.module in sys.modules:
            _apply(patch)
        else:
            when_imported(patch.module, functools.partial(_apply, patch))


def _apply(patch: Patch) -> None:
    place = patch.module, patch.name
    if _applied.get(place) is not patch:  # another one has come before the module was imported
        return
    try:
        owner, name = _owner(*place)
        # Order: before the replacement is loaded, which may ask for it.
        _originals.setdefault(place, _members(owner).get(name, _MISSING))
        setattr(owner, name, pickle.loads(patch.blob))  # noqa: S301  the trainer's own objects
    except Exception as error:  # noqa: BLE001  border: classes that cannot be changed, code that cannot be rebuilt
        logger.warning(
            "antifreeze: %s.%s was replaced in the trainer, but not in a worker: %s: %s",
            *(*place, type(error).__name__, error),
        )


def _put_back(module: str, name: str) -> None:
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
