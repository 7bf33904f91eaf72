"""Finds the variables of a module that its source sets to literal values."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


def literals(module: ModuleType) -> Iterator[str]:
    """Yield their names; ``Class.name`` for those of classes."""
    loader: Any = module.__loader__
    body = ast.parse(loader.get_source(module.__name__) or "").body
    yield from _names(body)
    for found in body:
        if isinstance(found, ast.ClassDef):
            yield from (f"{found.name}.{name}" for name in _names(found.body))


def _names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for target, value in _assigned(body):
        is_literal = not any(isinstance(node, ast.Call | ast.Name | ast.Attribute) for node in ast.walk(value))
        if isinstance(target, ast.Name) and is_literal:
            yield target.id


def _assigned(body: Iterable[ast.stmt]) -> Iterator[tuple[ast.expr, ast.expr]]:
    for line in body:
        if isinstance(line, ast.AnnAssign) and line.value is not None:
            yield line.target, line.value
        elif isinstance(line, ast.Assign):
            for target in line.targets:
                if isinstance(target, ast.Tuple) and isinstance(line.value, ast.Tuple):
                    yield from zip(target.elts, line.value.elts, strict=False)
                else:
                    yield target, line.value
