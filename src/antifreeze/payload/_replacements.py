"""Functions and classes that the script has replaced: ``json.dumps = mine``, ``unittest.mock.patch``.

Workers import modules, and would use the originals. A replacement is recognized by its origin, because the previous
content of a module is not known:

* In a library module: functions and classes of the user's modules, however wrapped, and mocks. No library has them when
  it is imported.
* In a user module: mocks, and functions of the script or of tests, unless the module's source imports these.
* In a library module that user code references by name: a function that another library has under the same name, if
  the module's source has a ``def`` for it: ``json.dumps = orjson.dumps``. It is sent as a name. Under any other name it
  was probably put there by the other library, which does so again when a worker imports it.

All modules are examined, because a function that is called through another library may be replaced, too. With torch,
pandas and transformers, these are 200,000 values; examining them takes 70 ms the first time, and 35 ms later: modules
that have the same objects as the last time are skipped.

A replacement often calls the original by another name. In every process that applies the replacement, the original's
import path leads to the replacement, so originals are sent as a reference to the previous value (``original``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import attrgetter, methodcaller
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from antifreeze.core import get_logger
from antifreeze.ipc import is_found
from antifreeze.payload._modules import (
    apply_latest,
    attributes,
    class_members,
    is_library,
    members_of,
    module_members,
    owner_of,
)

logger = get_logger()

_MAX_NBYTES = 1 << 20
_MAX_PATCHES = 200
_PARTS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func",),
    functools.partialmethod: ("func",),
    functools._lru_cache_wrapper: ("__wrapped__",),
}
"""Types that wrap a function, and the attributes that hold it."""
_USED_BY_WORKERS = frozenset({"time", "os", "posix", "threading", "select", "selectors", "socket", "signal", "mmap"})
_USED_BY_WORKERS |= {"fcntl", "struct", "pickle"}
"""Modules that workers themselves depend on are not patched."""
_TOOLS = frozenset({"antifreeze", "pydevd", "debugpy", "_pydevd_bundle", "_pydev_bundle", "_pydevd_frame_eval"})
"""Debuggers may be installed anywhere, and replace functions in every process themselves."""
_OF_TORCH: tuple[str, ...] = (
    "_dynamo",
    "_inductor",
    "_functorch",
    "_higher_order_ops",
    "distributed",
    "fx",
    "ao",
    "onnx",
)
_OF_TORCH += ("_numpy", "_refs", "_prims")
_INTERNALS = ("sympy.", "mpmath.", *(f"torch.{name}." for name in _OF_TORCH))
"""A third of all modules that torch imports, which no dataset calls."""
_TESTS = ("test_*.py", "*_test.py", "conftest.py")

_NOT_REPLACED = "antifreeze: %s was replaced in this process, but workers use the original: %s"
_warned: set[str] = set()
_values_of = methodcaller("values")


class Replacement(NamedTuple):
    """A replaced object, and its module and name."""

    module: str
    name: str
    value: Any


class Patch(NamedTuple):
    """A replacement of what a module had when it was imported."""

    module: str
    name: str
    """``Class.name`` for methods."""
    blob: bytes
    """Its pickle, loaded only when its module is imported."""


_seen: dict[int, _ModuleScan] = {}
_seen_with: set[str] = set()


def find_replacements(by_value: set[str]) -> list[Replacement]:
    """Return what was replaced in the modules of this process. ``by_value`` names modules that exist only here."""
    modules = {name: found for name, found in list(sys.modules.items()) if _is_examined(name, found)}
    sources = _Sources(modules, by_value)
    if _seen_with != by_value:  # then other modules count as the user's
        _seen.clear()
        _seen_with.clear()
        _seen_with.update(by_value)
    found: list[Replacement] = []
    for name, module in modules.items():
        if name in sources.scripts or name.startswith(_INTERNALS):
            continue
        scan = _seen.get(id(module))
        if scan is None or not scan.is_current():
            scan = _seen[id(module)] = _ModuleScan(name, module, sources)
        found += scan.found
    found += _of_other_libraries(sources)
    # Hooks that Python calls at the end of a program or thread are left alone: no worker gets there.
    found = [f for f in found if f.module != "sys" and not (f.module == "threading" and f.name.endswith("hook"))]
    return found + list(_kept_originals({(each.module, each.name) for each in found}, sources))


class _Sources:
    """The user's modules. The origin of a function is found by its ``__globals__``, which is fast."""

    def __init__(self, modules: Mapping[str, ModuleType], by_value: set[str]) -> None:
        main = {"__main__", "__mp_main__", *by_value}
        own = {name: found for name, found in modules.items() if name in main or not is_library(found)}
        self.own = own = {name: found for name, found in own.items() if name.partition(".")[0] not in _TOOLS}
        self.scripts = {name for name in own if name in main or _is_test(own[name])}
        """Modules that others do not import: the script, and tests."""
        self.variables = {id(module_members(found)): name for name, found in own.items()}
        self.of_libraries = {id(module_members(found)) for name, found in modules.items() if name not in own}
        mock: Any = sys.modules.get("unittest.mock")
        self.mock: type | None = getattr(mock, "NonCallableMock", None)
        self.wrappers = frozenset({*_PARTS, *(_derived(self.mock) if self.mock else [])})
        self.metaclasses = frozenset(_derived(type))

    def origin(self, value: Any) -> str | None:
        """Return the user's module that a value comes from; "mock" for a mock, None for a library's value."""
        kind = type(value)
        if kind is FunctionType:
            variables = id(value.__globals__)
            if variables in self.of_libraries or variables in self.variables or self.mock is None:
                return self.variables.get(variables)
            return "mock" if issubclass(type(attributes(value).get("mock")), self.mock) else None  # autospec=True
        if (parts := _PARTS.get(kind)) is not None:
            return next(filter(None, [self.origin(getattr(value, part)) for part in parts]), None)
        if issubclass(kind, type):
            module = class_members(value).get("__module__")
            return module if module in self.own else None
        return "mock" if self.mock is not None and issubclass(kind, self.mock) else None


def _is_examined(name: str, module: Any) -> bool:
    is_module = issubclass(type(module), ModuleType) and name.partition(".")[0] != "antifreeze"
    return is_module and (module_members(module).get("__name__") == name or name == "__main__")


def _is_test(module: ModuleType) -> bool:
    file = PurePath(str(module_members(module).get("__file__")))
    return any(file.match(pattern) for pattern in _TESTS)


class _ModuleScan:
    """The values of a module and its classes when they were scanned, and the replacements among them."""

    __slots__ = ("_owners", "_values", "found")

    def __init__(self, name: str, module: ModuleType, sources: _Sources) -> None:
        members, metaclasses = module_members(module), sources.metaclasses
        self._owners: list[Mapping[str, Any]] = [members]
        self.found = [Replacement(name, key, members[key]) for key in _suspects(name, members, sources)]
        for key, kind in [(key, value) for key, value in list(members.items()) if type(value) in metaclasses]:
            inside = class_members(kind)
            home = inside.get("__module__")
            if home == name:
                # By its ``__name__``, if the module has several names for it.
                if key == kind.__name__ or kind.__name__ not in members:
                    self._owners.append(inside)
                    keys = _suspects(name, inside, sources)
                    self.found += [Replacement(name, f"{key}.{each}", inside[each]) for each in keys]
            elif home in sources.own and _is_replacement(name, key, kind, sources):
                self.found.append(Replacement(name, key, kind))
        self._values = self._now()

    def is_current(self) -> bool:
        """True if all values are still the same objects. They are not referenced: a module may hold a model."""
        return self._now() == self._values

    def _now(self) -> array[int]:
        return array("Q", map(id, chain.from_iterable(map(_values_of, self._owners))))


def _suspects(module: str, members: Mapping[str, Any], sources: _Sources) -> list[str]:
    """Return the names of functions, however wrapped, and of mocks that are replacements."""
    libraries, wrappers = sources.of_libraries, sources.wrappers
    names = [
        name
        for name, value in list(members.items())
        if (id(value.__globals__) not in libraries if (kind := type(value)) is FunctionType else kind in wrappers)
    ]
    return [name for name in names if _is_replacement(module, name, members[name], sources)] if names else names


def _derived(kind: Any) -> Iterator[type]:
    """Yield a class and all its subclasses."""
    yield kind
    for each in type.__subclasses__(kind):
        yield from _derived(each)


def _is_replacement(module: str, name: str, value: Any, sources: _Sources) -> bool:
    origin = sources.origin(value)
    if module in sources.own:
        return origin == "mock" or (origin in sources.scripts and origin != module and not _imports(module, origin))
    # A common idiom: np.load = functools.partial(np.load, mmap_mode="r").
    is_preset = type(value) is functools.partial and getattr(value.func, "__name__", "") == name
    return origin is not None or (is_preset and getattr(value.func, "__module__", "") == module)


def _of_other_libraries(sources: _Sources) -> Iterator[Replacement]:
    """Yield functions of one library that replace those of another: ``json.dumps = orjson.dumps``."""
    near = {id(each): each for own in sources.own.values() for each in list(module_members(own).values())}
    for module in near.values():
        if not issubclass(type(module), ModuleType) or id(module_members(module)) not in sources.of_libraries:
            continue
        members = module_members(module)
        name = str(members.get("__name__"))
        for key, value in list(members.items()):
            if key[:1] != "_" and _is_of_another(name, key, value, members) and _defines(name, key):
                yield Replacement(name, key, value)


def _is_of_another(module: str, name: str, value: Any, members: Mapping[str, Any]) -> bool:
    """True for a function that another module has under the same name."""
    kind = type(value)
    if kind is not BuiltinFunctionType and (kind is not FunctionType or value.__globals__ is members):
        return False
    other = str(value.__module__)
    if other == module or other == f"_{module}":  # the C half of a module of the standard library
        return False
    home: Any = sys.modules.get(other)
    return issubclass(type(home), ModuleType) and module_members(home).get(name) is value


def _defines(module: str, name: str) -> bool:
    """True if the source of a module has a ``def`` for a name."""
    code = _code(module)
    return code is not None and any(isinstance(each, CodeType) and each.co_name == name for each in code.co_consts)


def _imports(module: str, other: str) -> bool:
    """True if the source of a module imports another one: ``from conftest import write`` in a helper of tests."""
    code = _code(module)
    return code is not None and not {other, other.rpartition(".")[2]}.isdisjoint(code.co_names)


@functools.cache
def _code(module: str) -> CodeType | None:
    with contextlib.suppress(Exception):  # border: loaders of others
        found: CodeType | None = sys.modules[module].__spec__.loader.get_code(module)  # type: ignore[union-attr]
        return found
    return None


def _kept_originals(keys: set[tuple[str, str]], sources: _Sources) -> Iterator[Replacement]:
    """Yield what the user's modules imported by name before it was replaced: they still have the original."""
    for name, module in sources.own.items():
        if name in sources.scripts or not keys:
            continue
        for key, value in list(module_members(module).items()):
            if is_original(value, keys):
                yield Replacement(name, key, value)


def is_original(value: Any, keys: AbstractSet[tuple[str, str]]) -> bool:
    """True if the import path of a function or class now leads to something else."""
    if not keys or not issubclass(type(value), FunctionType | BuiltinFunctionType | type):
        return False
    return (value.__module__, value.__qualname__) in keys and not is_found(value)


# -- packing --------------------------------------------------------------------------------------------------


def packed(found: Iterable[Replacement], dump: Callable[[Any], bytes]) -> tuple[Patch, ...]:
    """Return what can be sent to workers, and warn about the rest, once per name."""
    patches = []
    for number, each in enumerate(found):
        if number >= _MAX_PATCHES:
            _warn(each, f"more than {_MAX_PATCHES} functions were replaced")
        elif each.module in _USED_BY_WORKERS:
            _warn(each, f"workers themselves need {each.module}")
        else:
            try:
                blob = dump(each.value)
            except Exception as error:  # noqa: BLE001  border: it calls the user's reducers
                _warn(each, f"it cannot be pickled: {type(error).__name__}: {error}")
                continue
            if len(blob) > _MAX_NBYTES:
                _warn(each, f"it takes {len(blob)} bytes, of at most {_MAX_NBYTES}")
            else:
                patches.append(Patch(each.module, each.name, blob))
    return tuple(patches)


def _warn(found: Replacement, reason: str) -> None:
    name = f"{found.module}.{found.name}"
    if name not in _warned:
        _warned.add(name)
        logger.warning(_NOT_REPLACED, name, reason)


# -- applying, in a worker ----------------------------------------------------------------------------------------

_MISSING = object()
_originals: dict[tuple[str, str], Any] = {}
_applied: dict[tuple[str, str], Patch] = {}


def apply_patches(patches: Iterable[Patch]) -> None:
    """Apply patches now, or when their module is imported; restore what is no longer replaced.

    A process may call this twice: as a template, and after it was forked as a worker.
    """
    latest = {(patch.module, patch.name): patch for patch in patches}
    for key in _applied.keys() - latest.keys():
        del _applied[key]
        if key not in _originals:  # its module was never imported
            continue
        before = _originals.pop(key)
        owner, name = owner_of(sys.modules[key[0]], key[1])
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    for key, patch in latest.items():
        apply_latest(_applied, key, patch.module, patch, _apply)


def _apply(patch: Patch) -> None:
    key = patch.module, patch.name
    try:
        owner, name = owner_of(sys.modules[patch.module], patch.name)
        # Order: before the replacement is loaded, which may refer to it.
        _originals.setdefault(key, members_of(owner).get(name, _MISSING))
        setattr(owner, name, pickle.loads(patch.blob))  # noqa: S301  the trainer's own objects
    except Exception as error:  # noqa: BLE001  border: classes that cannot be changed, code that cannot be rebuilt
        logger.warning(
            "antifreeze: %s.%s was replaced in the trainer, but could not be replaced in a worker: %s: %s",
            *(*key, type(error).__name__, error),
        )


def original(module: str, name: str) -> Any:
    """Return what a module had under a name before it was replaced."""
    imported = importlib.import_module(module)
    found = _originals.get((module, name), _MISSING)
    return attrgetter(name)(imported) if found is _MISSING else getattr(found, "__func__", found)
