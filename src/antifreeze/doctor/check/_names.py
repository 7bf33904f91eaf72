"""What names of a script stand for: ``pl.scan_parquet`` is ``polars.scan_parquet``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_STARS = {
    "torch.utils.data": ("DataLoader", "Dataset", "IterableDataset", "TensorDataset", "get_worker_info"),
    "antifreeze": ("DataLoader", "StreamingDataLoader", "StreamingDataset"),
}
"""What ``from module import *`` brings, where it matters."""


def imports_of(tree: ast.AST) -> dict[str, str]:
    """Return what each imported name stands for, those imported inside functions included."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # ``import a.b`` binds a; ``import a.b as c`` binds a.b
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                names = _STARS.get(module, ()) if alias.name == "*" else (alias.name,)
                found.update({alias.asname or name: f"{module}.{name}" for name in names})
    return found


def dotted(node: ast.AST, imports: Mapping[str, str]) -> str:
    """Return the full name of ``a.b.c`` with imports resolved, or nothing if it is no plain name.

    A name that is not imported stands for itself: a builtin, or something of this file.
    """
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(imports.get(node.id, node.id))
    return ".".join(reversed(parts))


def self_attribute(node: ast.AST) -> str:
    """Return the name of ``self.name``, or nothing."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return ""


def targets_of(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Return the (target, value) pairs of an assignment; ``a, b = x, y`` gives two."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value)]
    else:
        return []
    flat: list[tuple[ast.expr, ast.expr]] = []
    for target, value in pairs:
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            same = len(values) == len(target.elts)
            flat += [(part, values[i] if same else value) for i, part in enumerate(target.elts)]
        else:
            flat.append((target, value))
    return flat
