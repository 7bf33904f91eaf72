"""Stands in for packages that a peer imports and never uses here."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence


class _Unused:
    """What every name of a stubbed package is."""


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> type[_Unused]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] not in self.roots:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def stand_in(*roots: str) -> None:
    """Make `import root`, and anything below it, succeed with empty classes.

    torchvision has no build for the CPU-only torch used here (its import fails), and a transformers that
    mosaicml-streaming accepts conflicts with the other peers. Neither is used when reading MDS files.
    """
    sys.meta_path.insert(0, _Finder(roots))
