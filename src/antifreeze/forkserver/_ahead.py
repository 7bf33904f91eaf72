"""Importing a package in less time: a thread loads its native libraries while this one reads its modules."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from antifreeze.forkserver._once import compiled_once, know_files
from antifreeze.forkserver._shelf import Shelf

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
_NEEDS = {
    "torch": (
        "antifreeze.worker",
        "unittest.mock",
        "importlib.metadata",
        "typing_extensions",
        "tqdm",
        "torchgen.model",
    )
}
"""What it or a worker imports besides, and what does without it."""
_NATIVE = {
    "torch": (
        "numpy.random",
        "_asyncio",
        "_csv",
        "_heapq",
        "_multiprocessing",
        "_posixsubprocess",
        "_queue",
        "_ssl",
        "binascii",
        "unicodedata",
    )
}
"""Extension modules among that. They come first: the dynamic loader does one thing at a time."""
_MOST_S = 60.0


@contextlib.contextmanager
def read_ahead(package: str, sources: Sources) -> Iterator[None]:
    """Have an import of this package find its libraries loaded and its modules read; the thread has ended then.

    To read a module is to check it against its source and to build its code, as the import would. Nothing of the
    package is run.
    """
    files = dict(sources)
    if sys.platform != "linux" or package not in files or package not in _LIBRARIES or package in sys.modules:
        yield
        return
    _import(_NATIVE.get(package, ()))
    thread = threading.Thread(target=_load, args=(package, Path(files[package]).parent), daemon=True)
    thread.start()
    with compiled_once():
        _import(_NEEDS.get(package, ()))
        shelf = Shelf()
        shelf.read(package, files.pop(package))  # Order: first, though the trainer's modules say that it came last
        for name, path in files.items():
            if not thread.is_alive():
                break
            shelf.read(name, path)
        know_files(sources)
        sys.meta_path.insert(0, shelf)
        try:
            yield
        finally:
            sys.meta_path.remove(shelf)
            thread.join(_MOST_S)


def _import(names: Iterable[str]) -> None:
    """Import what there is of these."""
    for name in names:
        with contextlib.suppress(Exception):  # border: whatever is wrong with it, who needs it will say
            importlib.import_module(name)


def _load(package: str, folder: Path) -> None:
    """Load the libraries, and be silent about those that cannot be: the import will say why."""
    with contextlib.suppress(AttributeError):
        # Not through ctypes.CDLL: that holds the interpreter's lock.
        load = ctypes.CDLL(None).dlopen
        load.restype = ctypes.c_void_p
        for name, flags in _LIBRARIES[package]:
            load(os.fsencode(folder / name), flags)
