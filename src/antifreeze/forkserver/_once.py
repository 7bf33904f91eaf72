"""What the standard library does again and again while a large package is imported, done once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any


def know_files(sources: Iterable[tuple[str, str]]) -> None:
    """Tell ``inspect`` which module is in which file.

    Asked for a frame in a file that it does not know, as torch asks for each of its registrations, it follows the links
    in the paths of all modules: ten thousand calls of the kernel. Afterwards it knows what is told it here.
    """
    for name, path in sources:
        inspect.modulesbyfile.setdefault(path, name)


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """Have ``dataclasses`` compile a text only once: of the methods that it writes, many are the same."""

    @functools.cache
    def code(text: str) -> CodeType:
        # As from there: what this module takes from the future is not for its annotations.
        return compile(text, "<string>", "exec", dont_inherit=True)

    def execute(text: str, *namespaces: Any) -> None:
        exec(code(text), *namespaces)  # noqa: S102  in the place of the same call

    if "exec" in vars(dataclasses):
        yield
        return
    setattr(dataclasses, "exec", execute)  # noqa: B010  found before the builtin of this name
    try:
        yield
    finally:
        delattr(dataclasses, "exec")
