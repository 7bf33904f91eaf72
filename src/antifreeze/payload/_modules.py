"""Modules and objects of the user: reads what they hold without running their code, and acts when one is imported.

``getattr``, ``hasattr``, ``isinstance`` and ``vars`` run properties, ``__getattr__``, ``__getattribute__`` and
``__class__`` of the object: a deprecated attribute warns, a lazy module is imported, a dead proxy raises. The functions
of the first part read only what is stored.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader  # takes ten times as long to import as this module

_NOTHING = object()
_STORED = (GetSetDescriptorType, MemberDescriptorType)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_INSTALLED = ("site-packages", "dist-packages")
_MAX_MODULES = 500
_NOT_EXAMINED = sys.stdlib_module_names | {"antifreeze"}
"""Torch patches its functions into the standard library."""

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


# -- which are the user's, and which need torch ----------------------------------------------------------------------


def needs_torch(names: Iterable[str]) -> bool:
    """Return True if any of these modules belongs to torch, or references something of torch.

    A guess that only affects startup time: a module that is missed imports torch itself.
    """
    if "torch" not in sys.modules:
        return False
    queue, seen = list(names), set[str]()
    while queue and len(seen) < _MAX_MODULES:
        name = queue.pop()
        if name in seen or name.partition(".")[0] in _NOT_EXAMINED:
            continue
        seen.add(name)
        if name.partition(".")[0] == "torch":
            return True
        module = sys.modules.get(name)
        # What is sent by value does not need all imports of its script or notebook.
        if module is None or name == "__main__":
            continue
        uses = {_module_of(value) for value in list(module_members(module).values())} - {""}
        if any(use.partition(".")[0] == "torch" for use in uses):
            return True
        if not is_library(module):
            queue += uses
    return False


def own_sources(by_value: Collection[str], names: Iterable[str] | None = None) -> dict[str, tuple[int, int]]:
    """Return modification times and sizes of the source files of the user's modules, or of the modules ``names``.

    A process that has imported one of them must not be reused after the file was edited.
    """
    found = {}
    for name in list(sys.modules) if names is None else names:
        module: Any = sys.modules.get(name)
        if name in by_value or not issubclass(type(module), ModuleType) or is_library(module):
            continue
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(module_members(module)["__file__"])  # noqa: PTH116  for hundreds of modules in every epoch
            found[name] = (status.st_mtime_ns, status.st_size)
    return found


def _module_of(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, ModuleType):
        name = module_members(value).get("__name__")
    elif issubclass(kind, type):
        name = class_members(value).get("__module__")
    elif issubclass(kind, FunctionType | BuiltinFunctionType):
        name = value.__module__
    else:
        name = class_members(kind).get("__module__")
    return name if isinstance(name, str) and not name.startswith("antifreeze") else ""


def is_library(module: ModuleType) -> bool:
    """Return True if a module is not the user's: installed, of the standard library, or without a file."""
    file = module_members(module).get("__file__")
    return not isinstance(file, str) or _is_installed(file)


@functools.cache
def _is_installed(file: str) -> bool:
    within = any(f"{os.sep}{name}{os.sep}" in file for name in _INSTALLED)
    return not Path(file).is_absolute() or within or file.startswith((*_LIBRARIES, *_installed_folders()))


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    """Return the directories on ``sys.path`` that an installer has filled, for example ``pip install --target``."""
    found = {os.path.abspath(entry) for entry in sys.path if entry}  # noqa: PTH100  as modules have it in __file__
    return tuple(entry + os.sep for entry in found if any(Path(entry).glob("*.dist-info")))


# -- callbacks at import ------------------------------------------------------------------------------------------


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` now if the module is loaded, otherwise right after it is imported."""
    if name in sys.modules:
        act()
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.acts.setdefault(name, []).append(act)


def apply_latest(applied: dict[Any, Any], key: Any, module: str, value: Any, act: Callable[[Any], None]) -> None:
    """Call ``act`` with a value as soon as a module is imported, unless it was applied before or is superseded then."""

    def act_on_latest() -> None:
        if applied.get(key) is value:
            act(value)

    if applied.get(key) != value:
        applied[key] = value
        when_imported(module, act_on_latest)


class _Finder:
    def __init__(self) -> None:
        self.acts: dict[str, list[Callable[[], None]]] = {}
        self._asking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target  # the other finders are called again below
        if fullname not in self.acts or fullname in self._asking:
            return None
        self._asking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._asking.discard(fullname)
        if spec is not None and spec.loader is not None:
            self._act_after(fullname, spec.loader)
        return spec

    def _act_after(self, name: str, loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)  # Order: first. If it raises, the module may be imported again, and the callbacks are kept
            for act in self.acts.pop(name, []):
                act()
            if not self.acts and self in sys.meta_path:
                sys.meta_path.remove(self)

        loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _Finder()
