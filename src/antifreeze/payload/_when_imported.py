"""Runs callbacks as soon as a module is imported, now or later by user code."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader  # takes ten times as long to import as this module


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` now if the module is loaded, otherwise right after it is imported."""
    if name in sys.modules:
        act()
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.acts.setdefault(name, []).append(act)


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
