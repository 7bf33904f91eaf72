"""``main-guard`` and ``not-picklable``: workers that are new interpreters import the script and unpickle objects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Script, in_scope, self_name

_RUNS = {"fit", "validate", "test", "predict", "train", "evaluate"}
_TAKES = {"enumerate", "iter", "next", "list", "tuple", "sum", "zip", "map"}
_ARGUMENTS = ("collate_fn", "worker_init_fn", "dataset")


@rule(
    "main-guard",
    Weight.ERROR,
    "Every worker tries to start workers itself; the loader fails with an error that does not say so.",
)
def main_guard(context: ScriptContext) -> Iterator[Violation]:
    """Find loaders with workers that are read while the module is imported."""
    script, dangerous = context.script, list(context.pickling_loaders)
    if not dangerous:
        return
    calls = {id(loader.call) for loader in dangerous}
    values = ((name, value) for name, values in script.values.items() for value in values)
    names = {name for name, value in values if any(id(part) in calls for part in ast.walk(value))}
    readers = _readers(script, names, calls)
    for statement in _unguarded(script):
        place = next(_reads(script, statement, names, calls, readers), None)
        if place is not None:
            how = " or ".join(sorted(dangerous[0].methods - {"fork"}))
            problem = f"workers are started by {how}, so each imports this script and runs this line."
            yield Violation(place, problem, '+ if __name__ == "__main__":\n      ...')
            return


def _unguarded(script: Script) -> Iterator[ast.AST]:
    """Yield what runs when the module is imported."""
    for statement in script.tree.body:
        guarded = isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)
        if not guarded and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement
            yield from in_scope(statement)


def _mentions(node: ast.AST, script: Script, names: set[str], calls: set[int]) -> bool:
    """True if an expression contains a loader; ``len(loader)`` does not count."""
    todo = [node]
    while todo:
        part = todo.pop()
        if id(part) in calls or (isinstance(part, ast.Name) and part.id in names):
            return True
        if not (isinstance(part, ast.Call) and script.name(part.func) == "len"):
            todo += ast.iter_child_nodes(part)
    return False


def _reads(script: Script, node: ast.AST, names: set[str], calls: set[int], readers: set[str]) -> Iterator[ast.AST]:
    """Yield the expressions in one node that read a loader, or call a function that does."""
    if isinstance(node, ast.For | ast.comprehension) and _mentions(node.iter, script, names, calls):
        yield node.iter
    if not isinstance(node, ast.Call):
        return
    name = script.name(node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    arguments = [*node.args, *(k.value for k in node.keywords)]
    reads = (name in _TAKES or method in _RUNS) and any(_mentions(a, script, names, calls) for a in arguments)
    if name in readers or reads:
        yield node


def _readers(script: Script, names: set[str], calls: set[int]) -> set[str]:
    """Return the functions that read a loader when they are called, directly or through others."""
    found: set[str] = set()
    while True:
        more = set()
        for name, function in script.functions.items():
            given = names | {a.arg for a in function.args.args if "loader" in a.arg.lower()}
            if any(True for node in in_scope(function) for _ in _reads(script, node, given, calls, found)):
                more.add(name)
        if more <= found:
            return found
        found |= more


@rule("not-picklable", Weight.ERROR, "It cannot be pickled, and these workers are not forked.", section="notpicklable")
def not_picklable(context: ScriptContext) -> Iterator[Violation]:
    """Find lambdas and inner functions in datasets and in the arguments of loaders."""
    for dataset in context.datasets:
        pickles = any(loader.has_workers and loader.can_spawn for loader in dataset.loaders)
        if not pickles or "__getstate__" in dataset.methods:
            continue
        for name, (value, function) in dataset.initial_values().items():
            if isinstance(value, ast.Lambda):
                problem = f"{self_name(function)}.{name} is a lambda."
                yield Violation(value, problem, "make it a function at module level, or a method")
    yield from _in_arguments(context)


def _in_arguments(context: ScriptContext) -> Iterator[Violation]:
    script = context.script
    definitions = (n for n in ast.walk(script.tree) if isinstance(n, ast.FunctionDef | ast.ClassDef))
    inner = {n.name for n in definitions if script.is_local(n)} - script.functions.keys()
    for loader in context.pickling_loaders:
        for argument in _ARGUMENTS:
            given = loader.arguments.get(argument)
            for node in ast.walk(given) if given is not None else ():
                what = "a lambda" if isinstance(node, ast.Lambda) else ""
                if isinstance(node, ast.Name) and node.id in inner:
                    what = f"{node.id}, which is defined inside a function"
                if what:
                    change = "define it at module level, with a name"
                    yield Violation(node, f"{argument} is or contains {what}.", change)
