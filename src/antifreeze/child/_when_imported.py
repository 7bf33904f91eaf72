"""Something to do as soon as a module is there, whether it is imported already or later by user code."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader  # which takes ten times as long to import as this module


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call ``act`` now if the module is loaded, else right after it was."""
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name, self._act = name, act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target  # what the ordinary finders are asked again
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._act_after(spec.loader)
        else:
            sys.meta_path.insert(0, self)
        return spec

    def _act_after(self, loader: Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)  # it may be tried again
                raise
            self._act()

        loader.exec_module = exec_module  # type: ignore[method-assign]
