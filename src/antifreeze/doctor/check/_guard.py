"""The rule about the main guard: workers that are new interpreters import the script, and must not start it again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._names import targets_of
from antifreeze.doctor.check._script import Script, in_scope

_RUNS = {"fit", "validate", "test", "predict", "train", "evaluate"}
_TAKES = {"enumerate", "iter", "next", "list", "tuple", "sum", "zip", "map"}


def main_guard(script: Script, loaders: list[Loader]) -> Iterator[CheckFinding]:
    """Find loaders with workers that are read while the module is imported."""
    dangerous = [loader for loader in loaders if loader.has_workers and loader.pickles]
    if not dangerous:
        return
    names = _variables(script, dangerous)
    calls = {id(loader.call) for loader in dangerous}
    readers = _readers(script, names, calls)
    for statement in _unguarded(script):
        place = next(_reads(script, statement, names, calls, readers), None)
        if place is not None:
            how = " or ".join(sorted(dangerous[0].methods - {"fork"}))
            reason = (
                f"workers are started by {how}, so each imports this script, gets here, and tries to start workers of "
                "its own: the loader ends with an error that does not say so."
            )
            yield script.finding(Code.MAIN_GUARD, place, reason, '+ if __name__ == "__main__":\n      ...')
            return


def _variables(script: Script, loaders: list[Loader]) -> set[str]:
    """Return the variables that hold one of the loaders."""
    calls = {id(loader.call) for loader in loaders}
    names = set()
    for node in ast.walk(script.tree):
        for target, value in targets_of(node):
            if isinstance(target, ast.Name) and any(id(part) in calls for part in ast.walk(value)):
                names.add(target.id)
    return names


def _unguarded(script: Script) -> Iterator[ast.AST]:
    """Give what runs when the module is imported."""
    for statement in script.tree.body:
        guarded = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        if not guarded and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
            yield from in_scope(statement)


def _mentions(node: ast.AST, script: Script, names: set[str], calls: set[int]) -> bool:
    """Whether an expression holds a loader; ``len(loader)`` does not count."""
    todo = [node]
    while todo:
        part = todo.pop()
        if id(part) in calls or (isinstance(part, ast.Name) and part.id in names):
            return True
        if not (isinstance(part, ast.Call) and script.name(part.func) == "len"):
            todo += ast.iter_child_nodes(part)
    return False


def _reads(script: Script, node: ast.AST, names: set[str], calls: set[int], readers: set[str]) -> Iterator[ast.AST]:
    """Give the places in one node that read a loader, or call a function that does."""
    if isinstance(node, ast.For | ast.comprehension) and _mentions(node.iter, script, names, calls):
        yield node.iter
    if not isinstance(node, ast.Call):
        return
    name = script.name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    arguments = [*node.args, *(k.value for k in node.keywords)]
    if name in readers or (
        (name in _TAKES or method in _RUNS) and any(_mentions(a, script, names, calls) for a in arguments)
    ):
        yield node


def _readers(script: Script, names: set[str], calls: set[int]) -> set[str]:
    """Return the functions that read a loader when they are called, through others as well."""
    found: set[str] = set()
    for _ in range(len(script.functions) + 1):
        more = set()
        for name, function in script.functions.items():
            given = names | {a.arg for a in function.args.args if "loader" in a.arg.lower()}
            if name not in found and any(
                place is not None for node in in_scope(function) for place in _reads(script, node, given, calls, found)
            ):
                more.add(name)
        if not more:
            break
        found |= more
    return found
