"""Gathers what the script has set in modules for workers, which import the modules themselves."""

from __future__ import annotations

import contextlib
import enum
import pickle
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from antifreeze.payload._inspection import class_members, module_members
from antifreeze.payload._loggers import log_settings
from antifreeze.payload._modules import is_library
from antifreeze.payload._settings import Settings, Variables, interpreter_settings, is_data

_NOT_VARIABLES = (FunctionType, BuiltinFunctionType, ModuleType, property, staticmethod, classmethod)
_SCALARS = (bool, int, float, str)
_WITHOUT_CONSTANTS = sys.stdlib_module_names | {"antifreeze", "torch", "numpy", "pyarrow"}
"""Not examined: their settings are made by functions."""


def gather_settings(by_value: set[str]) -> Settings:
    """Return the settings of modules and of the interpreter that workers take over."""
    modules = {}
    own = [(name, module) for name, module in list(sys.modules.items()) if _is_own(name, module, by_value)]
    for name, module in own:
        variables = _variables(_named(module))
        if variables.values:
            modules[name] = variables
    scripts = [sys.modules[name] for name in ("__main__", *by_value) if name in sys.modules]
    for name, module in _libraries([*scripts, *(module for _, module in own)]).items():
        values = list(module_members(module).items())
        constants = {key: pickle.dumps(value) for key, value in values if _is_constant(key, value)}
        if constants:
            modules[name] = Variables(constants, (), is_library=True)
    return Settings(modules, interpreter_settings(), log_settings())


def _is_own(name: str, module: ModuleType, by_value: set[str]) -> bool:
    """Return True if a module belongs to the user and workers import it."""
    if name in by_value or name in ("__main__", "__mp_main__") or name.partition(".")[0] == "antifreeze":
        return False
    is_module = issubclass(type(module), ModuleType)
    return is_module and module_members(module).get("__name__") == name and not is_library(module)


def _named(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a module and of its classes."""
    for name, value in list(module_members(module).items()):
        if issubclass(type(value), type):
            members = class_members(value)
            if members.get("__module__") == _name(module) and enum.Enum not in value.__mro__:
                yield from ((f"{name}.{key}", each) for key, each in _without_functions(members))
        else:
            yield from _without_functions({name: value})


def _without_functions(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in names.items():
        if not name.startswith("__") and not issubclass(type(value), _NOT_VARIABLES):
            yield name, value


def _variables(names: Iterator[tuple[str, Any]]) -> Variables:
    """Return the values of public variables. Private ones are internal to a module, and are not set from outside."""
    values, bound = {}, []
    for name, value in names:
        with contextlib.suppress(Exception):  # border: user objects may do anything when inspected
            if is_data(value):
                if not name.rpartition(".")[2].startswith("_"):
                    values[name] = pickle.dumps(value)
                continue
        bound.append(name)
    return Variables(values, tuple(bound), is_library=False)


def _libraries(users: list[ModuleType]) -> dict[str, ModuleType]:
    """Return the libraries that the user's modules reference by name, and those that these reference."""
    near = {id(found): found for user in users for found in _modules_in(user)}
    near |= {id(found): found for library in list(near.values()) for found in _modules_in(library)}
    return {name: module for module in near.values() if _has_constants(name := _name(module), module)}


def _modules_in(module: ModuleType) -> list[ModuleType]:
    return [value for value in list(module_members(module).values()) if issubclass(type(value), ModuleType)]


def _name(module: ModuleType) -> str:
    return str(module_members(module).get("__name__", ""))


def _has_constants(name: str, module: ModuleType) -> bool:
    is_known = sys.modules.get(name) is module and name.partition(".")[0] not in _WITHOUT_CONSTANTS
    return is_known and is_library(module)


def _is_constant(name: str, value: object) -> bool:
    return name.isupper() and not name.startswith("_") and (value is None or type(value) in _SCALARS)
