"""Modules that were read before they are imported."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
from collections.abc import Sequence
from types import CodeType, ModuleType


class Shelf:
    """Modules that were read and not yet imported."""

    def __init__(self) -> None:
        self._loaders: dict[str, ReadLoader] = {}

    def read(self, name: str, path: str) -> None:
        """Read one that lies there. If that does not work, its import will say why."""
        with contextlib.suppress(Exception):  # border: whatever is wrong with a file
            self._loaders[name] = ReadLoader(name, path)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module here, once."""
        del path, target
        loader = self._loaders.pop(fullname, None)
        if loader is None:
            return None
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class ReadLoader(importlib.machinery.SourceFileLoader):
    """The ordinary loader, with the code that it will be asked for."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._code = super().get_code(fullname)

    def get_code(self, fullname: str) -> CodeType | None:
        """Return it; when asked again, as for a module that is loaded anew, what the file says then."""
        code, self._code = self._code, None
        return code or super().get_code(fullname)
