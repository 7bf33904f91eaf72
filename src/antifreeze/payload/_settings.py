"""Applies the trainer's settings of modules and of the interpreter in a worker: a fork would have inherited them."""

from __future__ import annotations

import contextlib
import enum
import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import PurePath
from types import ModuleType, NoneType, SimpleNamespace, WrapperDescriptorType
from typing import Any, NamedTuple

from antifreeze.payload._inspection import attributes, class_members, find_in_class, module_members
from antifreeze.payload._loggers import Log
from antifreeze.payload._patches import Patch, apply_patches
from antifreeze.payload._reducers import is_left_to_pickle
from antifreeze.payload._safe_unpickle import rebuilt
from antifreeze.payload._when_imported import when_imported

_MAX_NODES = 10_000
_SCALARS = frozenset({NoneType, bool, int, float, complex, str, bytes, range})
_CONTAINERS = (dict, list, tuple, set, frozenset)
_OF_HANDLES = ("__del__", "__exit__", "close", "fileno")
_MISSING = object()


class Variables(NamedTuple):
    """The variables of one module in the trainer; ``Class.name`` for those of its classes."""

    values: dict[str, bytes]
    """Pickles of the variables that are plain data."""
    bound: tuple[str, ...]
    """Names of the others, which cannot be sent."""
    is_library: bool


class Settings(NamedTuple):
    """All settings that a worker takes over."""

    modules: dict[str, Variables]
    interpreter: dict[str, bytes]
    logs: list[Log]
    patches: tuple[Patch, ...] = ()


# -- of the interpreter ----------------------------------------------------------------------------------------------

_INTERPRETER = {
    "sys": [("getrecursionlimit", "setrecursionlimit")],
    "socket": [("getdefaulttimeout", "setdefaulttimeout")],
    "_csv": [("field_size_limit", "field_size_limit")],
    "torch": [
        ("get_default_dtype", "set_default_dtype"),
        ("is_grad_enabled", "set_grad_enabled"),
        ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    ],
}
"""Getters and setters by module. Others are the user's to call in ``worker_init_fn``."""


def interpreter_settings() -> dict[str, bytes]:
    """Return the interpreter settings of this process, by imported module."""
    there = [(name, pairs) for name, pairs in _INTERPRETER.items() if name in sys.modules]
    return {name: pickle.dumps([getattr(sys.modules[name], get)() for get, _ in pairs]) for name, pairs in there}


def _set_in(module: str, blob: bytes) -> None:
    for (_, name), value in zip(_INTERPRETER[module], rebuilt(blob), strict=True):
        with contextlib.suppress(Exception):  # border: another version of the library may not take it
            getattr(sys.modules[module], name)(value)


# -- of modules ------------------------------------------------------------------------------------------------------


def is_data(value: object) -> bool:
    """Return True if a value is plain data throughout: numbers, strings, paths, containers and records of these."""
    left, queue, seen = _MAX_NODES, [value], set[int]()
    while queue and left > 0:
        left -= 1
        found = queue.pop()
        kind = type(found)
        if kind in _SCALARS:
            left -= len(found) // 64 if isinstance(found, str | bytes) else 0
        elif id(found) in seen or issubclass(kind, PurePath | enum.Enum):
            continue
        elif (base := _container(kind)) is not None:
            if not _is_plain(kind) or base.__len__(found) > left:
                return False
            queue += [*base.__iter__(found), *attributes(found).values()]
            queue += dict.values(found) if isinstance(found, dict) else ()
        elif _is_record(kind):
            queue += attributes(found).values()
        else:
            return False
        seen.add(id(found))
    return left > 0


def _container(kind: type) -> Any:
    return next((base for base in _CONTAINERS if issubclass(kind, base)), None)


def _is_record(kind: type) -> bool:
    """True if objects of a type consist of their attributes only, and need not be closed."""
    if kind is SimpleNamespace:
        return True
    if not is_left_to_pickle(kind) or kind.__dictoffset__ == 0 or not _is_plain(kind):
        return False
    return all(find_in_class(kind, name) is None for name in _OF_HANDLES)


def _is_plain(kind: type) -> bool:
    """True if reading a stored attribute of an object, as pickle does, runs no user code."""
    return type(find_in_class(kind, "__getattribute__")) is WrapperDescriptorType


_applied: dict[str, Any] = {}
"""Settings that were applied already, in this process or in one that it was forked from."""


def take_over(settings: Settings) -> None:
    """Apply all settings, each now or when its module is imported."""
    for name, blob in settings.interpreter.items():
        _apply(f"interpreter {name}", name, blob, _set_in)
    for name, variables in settings.modules.items():
        _apply(f"module {name}", name, variables, _set_all)
    apply_patches(settings.patches)


def _apply(key: str, module: str, value: Any, act: Callable[[str, Any], None]) -> None:
    """Apply a setting unless it was applied before: code that was loaded since may have changed it on purpose."""
    if _applied.get(key) != value:
        _applied[key] = value
        when_imported(module, functools.partial(_act_on_latest, key, module, value, act))


def _act_on_latest(key: str, module: str, value: Any, act: Callable[[str, Any], None]) -> None:
    if _applied.get(key) is value:  # else the trainer changed it before the module was imported
        act(module, value)


def _set_all(name: str, variables: Variables) -> None:
    module = sys.modules[name]
    # Objects created in the trainer, such as a connection, do not exist here, so flags that say so must not be set.
    lost = any(_is_unmade(_get(module, each)) for each in variables.bound)
    for each, blob in variables.values.items():
        with contextlib.suppress(Exception):  # border: user's classes, and modules that are not the trainer's
            value, before = rebuilt(blob), _get(module, each)
            is_same = type(before) is type(value) and before == value
            is_flag = type(value) in (bool, NoneType)
            # A number that was computed during the import may be a handle of this process.
            is_own = type(value) is int and not variables.is_library and each not in _constants(name)
            if not (is_same or is_own or (is_flag and lost)):
                _set(module, each, before, value)


@functools.cache
def _constants(name: str) -> frozenset[str]:
    from antifreeze.payload._source_constants import literals  # which few workers need

    return frozenset(literals(sys.modules[name]))


def _is_unmade(value: Any) -> bool:
    is_empty = issubclass(type(value), dict | list | set) and _container(type(value)).__len__(value) == 0
    return value is None or value is False or value is _MISSING or is_empty


def _owner(module: ModuleType, name: str) -> tuple[Any, str]:
    kind, _, attribute = name.rpartition(".")
    return (module_members(module)[kind], attribute) if kind else (module, attribute)


def _get(module: ModuleType, name: str) -> Any:
    try:
        owner, attribute = _owner(module, name)
    except KeyError:
        return _MISSING
    members = module_members(owner) if isinstance(owner, ModuleType) else class_members(owner)
    return members.get(attribute, _MISSING)


def _set(module: ModuleType, name: str, before: Any, value: Any) -> None:
    """Set a variable. Mutable objects are changed in place: other modules may reference them by another name."""
    if type(before) is type(value) and isinstance(value, dict | list | set):
        if isinstance(value, dict):
            dict.clear(before)
            dict.update(before, value)
        elif isinstance(value, list):
            list.__setitem__(before, slice(None), value)
        else:
            set.clear(before)
            set.update(before, value)
        attributes(before).update(attributes(value))
    elif type(before) is type(value) and _is_record(type(value)):
        attributes(before).clear()
        attributes(before).update(attributes(value))
    else:
        owner, attribute = _owner(module, name)
        setattr(owner, attribute, value)
