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


_MARK = "of_own_object"


def mark_self(tree: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> None:
    """Mark every attribute of a method's first parameter, whatever that is called, for ``self_attribute``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            vars(node)[_MARK] = is_self(node.value, parents)


def is_self(name: ast.Name, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """True if a name is the first parameter of the method around it; functions inside of a method see it, too."""
    node = parents.get(name)
    while node is not None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and name.id in parameters(node):
            return isinstance(parents.get(node), ast.ClassDef) and self_name(node) == name.id
        node = parents.get(node)
    return False


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    """Return the names of a function's parameters, those that can be given by position first."""
    given = function.args
    rest = [argument for argument in (given.vararg, given.kwarg) if argument is not None]
    return [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *rest)]


def self_name(function: ast.AST) -> str:
    """Return the name that a method gives to its own object; nothing for a static method."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    given = [*function.args.posonlyargs, *function.args.args]
    static = any(dotted(decorator, {}) == "staticmethod" for decorator in function.decorator_list)
    return given[0].arg if given and not static else ""


def self_attribute(node: ast.AST) -> str:
    """Return the name of ``self.name``, or nothing. What stands for ``self`` was found by ``mark_self``."""
    return node.attr if isinstance(node, ast.Attribute) and getattr(node, _MARK, False) else ""


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
