"""Importing a package in less time: a thread loads its native libraries while this one reads its modules."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType

Sources = tuple[tuple[str, str], ...]
"""Modules that the trainer has loaded, with their files."""

_LIBRARIES = {
    "torch": (
        ("lib/libtorch_global_deps.so", os.RTLD_NOW | os.RTLD_GLOBAL),
        ("lib/libtorch_cpu.so", os.RTLD_NOW),
    )
}
"""What takes long to load and has nothing of Python in it, in the order and the way in which the package does it.

Not what is for accelerators: torch prepares their drivers' libraries in between, where they do not fit together.
"""
_MOST_S = 60.0


@contextlib.contextmanager
def read_ahead(package: str, sources: Sources) -> Iterator[None]:
    """Have an import of this package find its libraries loaded and its modules read; the thread has ended then.

    To read a module is to check it against its source and to build its code, as the import would. Nothing is run.
    """
    files = dict(sources)
    if sys.platform != "linux" or package not in files or package not in _LIBRARIES or package in sys.modules:
        yield
        return
    thread = threading.Thread(target=_load, args=(package, Path(files[package]).parent), daemon=True)
    thread.start()
    shelf = _Shelf()
    for name, path in sources:
        shelf.read(name, path)
        if not thread.is_alive():
            break
    sys.meta_path.insert(0, shelf)
    try:
        yield
    finally:
        sys.meta_path.remove(shelf)
        thread.join(_MOST_S)


def _load(package: str, folder: Path) -> None:
    """Load the libraries, and be silent about those that cannot be: the import will say why."""
    with contextlib.suppress(AttributeError):
        # Not through ctypes.CDLL: that holds the interpreter's lock.
        load = ctypes.CDLL(None).dlopen
        load.restype = ctypes.c_void_p
        for name, flags in _LIBRARIES[package]:
            load(os.fsencode(folder / name), flags)


class _Shelf(importlib.abc.MetaPathFinder):
    """Modules that were read and not yet imported."""

    def __init__(self) -> None:
        self._loaders: dict[str, _Read] = {}

    def read(self, name: str, path: str) -> None:
        with contextlib.suppress(Exception):  # border: whatever is wrong with a file, its import will say
            self._loaders[name] = _Read(name, path)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        loader = self._loaders.pop(fullname, None)
        if loader is None:
            return None
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class _Read(importlib.machinery.SourceFileLoader):
    """The ordinary loader, with the code that it will be asked for."""

    def __init__(self, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._code = super().get_code(fullname)

    def get_code(self, fullname: str) -> CodeType | None:
        code, self._code = self._code, None
        return code or super().get_code(fullname)
