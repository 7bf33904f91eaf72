"""Settings of modules, loggers and the interpreter: gathered in the trainer, applied in a worker.

A fork would have inherited what the script has set. A worker imports its modules itself, so the trainer gathers the
settings that are plain data (``gather_settings``) and sends them with the environment. A worker applies each of them
now, or as soon as its module is imported (``take_over``).
"""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import io
import itertools
import logging
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType, SimpleNamespace, WrapperDescriptorType
from typing import Any, NamedTuple

from antifreeze.payload._modules import (
    apply_latest,
    attributes,
    class_members,
    find_in_class,
    is_library,
    members_of,
    module_members,
    owner_of,
)
from antifreeze.payload._reducers import is_left_to_pickle
from antifreeze.payload._replacements import Patch, apply_patches

_MAX_NODES = 10_000
_SCALARS = frozenset({NoneType, bool, int, float, complex, str, bytes, range})
_CONTAINERS = (dict, list, tuple, set, frozenset)
_FILL: dict[type, Callable[..., None]] = {dict: dict.update, list: list.extend, set: set.update}
_OF_HANDLES = ("__del__", "__exit__", "close", "fileno")
_MISSING = object()
_NOT_VARIABLES = (FunctionType, BuiltinFunctionType, ModuleType, property, staticmethod, classmethod)
_CONSTANTS = (NoneType, bool, int, float, str)
_WITHOUT_CONSTANTS = sys.stdlib_module_names | {"antifreeze", "torch", "numpy", "pyarrow"}
"""Not examined: their settings are made by functions."""


class _Output(NamedTuple):
    """A handler that writes to a stream of the process, or to a file."""

    target: str
    """``stdout``, ``stderr`` or an absolute path."""
    encoding: str | None
    level: int
    formatter: Any
    filters: list[Any]


class Log(NamedTuple):
    """The configuration of a logger."""

    name: str
    level: int
    propagate: bool
    disabled: bool
    outputs: list[bytes]
    """Each is pickled separately: formatters and filters may be of classes that a worker does not have."""


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

    def summary(self) -> tuple[str, ...]:
        """Return what is carried to workers, for people. Loggers and the interpreter's settings always are."""
        replaced = [f"replacement of {patch.module}.{patch.name}" for patch in self.patches]
        return (*replaced, *(f"settings of {name}" for name in self.modules))


# -- of the interpreter -------------------------------------------------------------------------------------------

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


def _set_in(module: str, blob: bytes) -> None:
    for (_, name), value in zip(_INTERPRETER[module], rebuilt(blob), strict=True):
        with contextlib.suppress(Exception):  # border: another version of the library may not take it
            getattr(sys.modules[module], name)(value)


# -- of modules: gathered -----------------------------------------------------------------------------------------


def gather_settings(by_value: set[str]) -> Settings:
    """Return the settings of modules and of the interpreter that workers take over."""
    own = {name: module for name, module in list(sys.modules.items()) if _is_own(name, module, by_value)}
    scripts = [sys.modules[name] for name in ("__main__", *by_value) if name in sys.modules]
    variables = {name: _variables(name, module) for name, module in own.items()}
    variables |= _constants([*scripts, *own.values()])
    interpreter = {}
    for name, pairs in _INTERPRETER.items():
        if name in sys.modules:
            interpreter[name] = pickle.dumps([getattr(sys.modules[name], get)() for get, _ in pairs])
    modules = {name: found for name, found in variables.items() if found.values}
    return Settings(modules, interpreter, _log_settings())


def _is_own(name: str, module: ModuleType, by_value: set[str]) -> bool:
    """Return True if a module belongs to the user and workers import it."""
    if name in by_value or name in ("__main__", "__mp_main__") or name.partition(".")[0] == "antifreeze":
        return False
    is_module = issubclass(type(module), ModuleType)
    return is_module and module_members(module).get("__name__") == name and not is_library(module)


def _variables(module: str, found: ModuleType) -> Variables:
    """Return the variables of a module and its classes. Private ones are internal, and are not set from outside."""
    members: dict[str, Any] = {}
    for name, value in list(module_members(found).items()):
        if not issubclass(type(value), type):
            members[name] = value
        elif class_members(value).get("__module__") == module and enum.Enum not in value.__mro__:
            members |= {f"{name}.{key}": each for key, each in class_members(value).items()}
    values, bound = {}, []
    for name, value in members.items():
        attribute = name.rpartition(".")[2]
        if attribute.startswith("__") or issubclass(type(value), _NOT_VARIABLES):
            continue
        with contextlib.suppress(Exception):  # border: user objects may do anything when inspected
            if is_data(value):
                if not attribute.startswith("_"):
                    values[name] = pickle.dumps(value)
                continue
        bound.append(name)
    return Variables(values, tuple(bound), is_library=False)


def _constants(users: list[ModuleType]) -> dict[str, Variables]:
    """Return the constants of libraries that the user's modules reference by name, and of those that these do."""
    near = {id(found): found for user in users for found in _modules_in(user)}
    near |= {id(found): found for library in list(near.values()) for found in _modules_in(library)}
    constants = {}
    for module in near.values():
        members = dict(module_members(module))
        name = str(members.get("__name__", ""))
        is_known = sys.modules.get(name) is module and name.partition(".")[0] not in _WITHOUT_CONSTANTS
        if is_known and is_library(module):
            names = [key for key, value in members.items() if key.isupper() and type(value) in _CONSTANTS]
            values = {key: pickle.dumps(members[key]) for key in names if not key.startswith("_")}
            constants[name] = Variables(values, (), is_library=True)
    return constants


def _modules_in(module: ModuleType) -> list[ModuleType]:
    return [value for value in list(module_members(module).values()) if issubclass(type(value), ModuleType)]


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


# -- of modules: applied ------------------------------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules:  # a setting is not worth the seconds that some libraries take to import
            raise pickle.UnpicklingError(f"{module} is not imported here")
        return super().find_class(module, name)


def rebuilt(blob: bytes) -> Any:
    """Return a value; raise UnpicklingError if the module of its class is not imported."""
    return _Unpickler(io.BytesIO(blob)).load()


_applied: dict[str, Any] = {}
"""Settings that were applied already, in this process or in one that it was forked from.

They are not applied twice: code that was loaded since may have changed them on purpose.
"""


def take_over(settings: Settings) -> None:
    """Apply all settings, each now or when its module is imported."""
    for name, blob in settings.interpreter.items():
        apply_latest(_applied, f"interpreter {name}", name, blob, functools.partial(_set_in, name))
    for name, variables in settings.modules.items():
        apply_latest(_applied, f"module {name}", name, variables, functools.partial(_set_all, name))
    apply_patches(settings.patches)


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
            is_own = type(value) is int and not variables.is_library and each not in _literals(name)
            if not (is_same or is_own or (is_flag and lost)):
                _set(module, each, before, value)


@functools.cache
def _literals(name: str) -> frozenset[str]:
    """Return the variables that the source of a module sets to literal values; ``Class.name`` for those of classes."""
    loader: Any = sys.modules[name].__loader__
    body = ast.parse(loader.get_source(name) or "").body
    scopes = {f"{each.name}.": each.body for each in body if isinstance(each, ast.ClassDef)}
    found: set[str] = set()
    for prefix, lines in {"": body, **scopes}.items():
        assigned = [(target, line.value) for line in lines if isinstance(line, ast.Assign) for target in line.targets]
        assigned += [(line.target, line.value) for line in lines if isinstance(line, ast.AnnAssign) and line.value]
        for target, value in itertools.chain(*itertools.starmap(_pairs, assigned)):
            if not any(isinstance(node, ast.Call | ast.Name | ast.Attribute) for node in ast.walk(value)):
                names = [node for node in ast.walk(target) if isinstance(node, ast.Name)]
                found |= {prefix + node.id for node in names if isinstance(node.ctx, ast.Store)}
    return frozenset(found)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what is assigned to what: ``a, b = 1, f()`` sets ``a`` to a literal."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for part, its_value in zip(target.elts, value.elts, strict=True):
            yield from _pairs(part, its_value)
    else:
        yield target, value


def _is_unmade(value: Any) -> bool:
    is_empty = issubclass(type(value), dict | list | set) and _container(type(value)).__len__(value) == 0
    return value is None or value is False or value is _MISSING or is_empty


def _get(module: ModuleType, name: str) -> Any:
    try:
        owner, attribute = owner_of(module, name)
    except KeyError:
        return _MISSING
    return members_of(owner).get(attribute, _MISSING)


def _set(module: ModuleType, name: str, before: Any, value: Any) -> None:
    """Set a variable. Mutable objects are changed in place: other modules may reference them by another name."""
    kind = _container(type(value))
    if type(before) is type(value) and kind in _FILL:
        kind.clear(before)
        _FILL[kind](before, value)
        attributes(before).update(attributes(value))
    elif type(before) is type(value) and _is_record(type(value)):
        attributes(before).clear()
        attributes(before).update(attributes(value))
    else:
        owner, attribute = owner_of(module, name)
        setattr(owner, attribute, value)


# -- of loggers ---------------------------------------------------------------------------------------------------


def _log_settings() -> list[Log]:
    """Return the configuration of the loggers of this process, as far as a worker can have the same."""
    others = [found for found in list(logging.root.manager.loggerDict.values()) if isinstance(found, logging.Logger)]
    found = []
    for logger in (logging.root, *others):
        outputs = []
        for output in filter(None, map(_output, list(logger.handlers))):
            with contextlib.suppress(Exception):  # border: formatters and filters of the user may not be picklable
                outputs.append(pickle.dumps(output))
        if logger is logging.root or logger.level or outputs or logger.disabled or not logger.propagate:
            found.append(Log(logger.name, logger.level, logger.propagate, logger.disabled, outputs))
    return found


def _output(handler: logging.Handler) -> _Output | None:
    rest = (handler.level, handler.formatter, list(handler.filters))
    if isinstance(handler, logging.FileHandler):
        return _Output(handler.baseFilename, handler.encoding, *rest)
    if type(handler) is logging.StreamHandler:
        streams = {"stdout": (sys.stdout, sys.__stdout__), "stderr": (sys.stderr, sys.__stderr__)}
        for name, known in streams.items():
            if any(handler.stream is stream for stream in known):
                return _Output(name, None, *rest)
    return None


def set_logs(settings: list[Log]) -> None:
    """Configure loggers. One that has handlers got them during an import, and keeps them."""
    for log in settings:
        logger = logging.root if log.name == logging.root.name else logging.getLogger(log.name)
        logger.setLevel(log.level)
        logger.propagate, logger.disabled = log.propagate, log.disabled
        if not logger.handlers:
            for blob in log.outputs:
                with contextlib.suppress(Exception):  # border: classes that do not exist here
                    logger.addHandler(_made(rebuilt(blob)))


def _made(output: _Output) -> logging.Handler:
    handler: logging.Handler
    if output.target.startswith("/"):
        handler = logging.FileHandler(output.target, "a", output.encoding, delay=True)
    else:
        handler = logging.StreamHandler(getattr(sys, output.target))
    handler.setLevel(output.level)
    handler.setFormatter(output.formatter)
    for each in output.filters:
        handler.addFilter(each)
    return handler
