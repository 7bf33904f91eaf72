"""Inspects the user's objects without running any of their code.

``getattr``, ``hasattr``, ``isinstance`` and ``vars`` run properties, ``__getattr__``, ``__getattribute__`` and
``__class__`` of the object: a deprecated attribute warns, a lazy module is imported, a dead proxy raises. These
functions read only what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

_NOTHING = object()
_STORED = (GetSetDescriptorType, MemberDescriptorType)

# Not wrapped in functions: they are called for every module and class.
class_members: Callable[[type], Mapping[str, Any]] = vars(type)["__dict__"].__get__
"""Return the members that a class itself defines."""
module_members: Callable[[ModuleType], dict[str, Any]] = class_members(ModuleType)["__dict__"].__get__
"""Return the members of a module, whether it is loaded or only prepared for lazy loading."""


def owner_of(module: ModuleType, name: str) -> tuple[Any, str]:
    """Return the module or the class that has a variable, and its name there. ``name`` may be ``Class.name``."""
    kind, _, attribute = name.rpartition(".")
    return (module_members(module)[kind] if kind else module), attribute


def members_of(owner: Any) -> Mapping[str, Any]:
    """Return the members of a module or a class."""
    return module_members(owner) if isinstance(owner, ModuleType) else class_members(owner)


def find_in_class(kind: type, name: str) -> Any:
    """Return what a class or its bases define under a name, or None."""
    return next(
        (found for base in kind.__mro__ if (found := class_members(base).get(name, _NOTHING)) is not _NOTHING), None
    )


def attributes(value: object) -> dict[str, Any]:
    """Return the ``__dict__`` of an object, as it is stored; empty if it has none, or pretends to have one."""
    way = find_in_class(type(value), "__dict__")
    found = way.__get__(value) if type(way) in _STORED else None
    return found if isinstance(found, dict) else {}


def slots(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object that are stored in slots and are set."""
    for base in type(value).__mro__:
        if "__slots__" not in class_members(base):
            continue
        for name, way in class_members(base).items():
            if type(way) is MemberDescriptorType:
                try:
                    yield name, way.__get__(value)
                except AttributeError:
                    continue
