"""``exit-in-worker``, ``stop-iteration``, ``local-error``, ``not-data``, ``none-sample``: bad ends of a sample's code.

Each of them replaces an error or a sample by something that the loader cannot tell from another event.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._loaders import DatasetClass
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import (
    EXITS,
    Function,
    Script,
    calls_in,
    in_scope,
    is_none,
    is_true,
    self_attribute,
)

_RAISE = "- return None\n+ raise  # or select the good samples beforehand, in __init__"


@rule("exit-in-worker", Weight.ERROR, "The loader reports a lost worker without the reason.", section="exited")
def exit_in_worker(context: ScriptContext) -> Iterator[Violation]:
    """Find calls that end the worker process."""
    script = context.script
    for function in (f for dataset in context.datasets for f in dataset.per_sample):
        for call in calls_in(in_scope(function)):
            if (name := script.name(call.func)) in EXITS and name not in script.functions:
                change = f'- {name}(...)\n+ raise RuntimeError(f"...")'
                yield Violation(call, f"{name}() ends the worker, not the training.", change)


@rule(
    "stop-iteration",
    Weight.FREEZE,
    "It ends the epoch early, without an error: the rest of the data is lost.",
    section="usercodeerror",
)
def stop_iteration(context: ScriptContext) -> Iterator[Violation]:
    """Find ``raise StopIteration`` outside of an iterator."""
    for dataset, function, node, name in _raised(context):
        if name == "StopIteration" and function.name != "__next__" and not dataset.is_iterable:
            change = "- raise StopIteration\n+ raise IndexError(index)"
            yield Violation(node, f"{function.name} raises StopIteration.", change)


@rule(
    "local-error",
    Weight.FREEZE,
    "It cannot be pickled: the error is lost, and the loader waits forever.",
    section="lost-batch",
)
def local_error(context: ScriptContext) -> Iterator[Violation]:
    """Find exceptions whose class is defined inside a function."""
    script = context.script
    for _, _, node, name in _raised(context):
        if name in script.classes and script.is_local(script.classes[name]):
            yield Violation(node, f"{name} is defined inside a function.", f"define class {name} at module level")


@rule(
    "not-data",
    Weight.FREEZE,
    "It cannot be pickled: the batch is lost, and the loader waits forever.",
    section="lost-batch",
)
def not_data(context: ScriptContext) -> Iterator[Violation]:
    """Find samples that hold a function or a generator."""
    functions = (f for dataset in context.datasets for f in dataset.per_sample if f.name == "__getitem__")
    for node in (node for function in functions for node in in_scope(function)):
        value = node.value if isinstance(node, ast.Return) else None
        parts = [value, *(value.elts if isinstance(value, ast.Tuple) else ())]
        parts += [value.body, value.orelse] if isinstance(value, ast.IfExp) else []
        for part in parts:
            if isinstance(part, ast.Lambda | ast.GeneratorExp):
                what = "a function" if isinstance(part, ast.Lambda) else "a generator"
                yield Violation(part, f"the sample holds {what}.", "return data: tensors, arrays, numbers, texts")


def _raised(context: ScriptContext) -> Iterator[tuple[DatasetClass, Function, ast.Raise, str]]:
    """Yield each ``raise`` of a sample's code with the plain name of what it raises."""
    for dataset in context.datasets:
        for function in dataset.per_sample:
            for node in in_scope(function):
                if isinstance(node, ast.Raise):
                    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                    yield dataset, function, node, error.id if isinstance(error, ast.Name) else ""


@rule(
    "none-sample", Weight.ERROR, "Collating fails on it, with a message that names no sample.", section="usercodeerror"
)
def none_sample(context: ScriptContext) -> Iterator[Violation]:
    """Find methods that return None for a sample, or end without a return after an error."""
    for dataset in context.datasets:
        if dataset.is_iterable or _none_is_handled(context.script, dataset):
            continue
        for function in _makers(dataset):
            for node in in_scope(function):
                if isinstance(node, ast.Return) and (node.value is None or is_none(node.value)):
                    above = context.script.above(node)
                    hides = " and hides the error" if any(isinstance(n, ast.ExceptHandler) for n in above) else ""
                    yield Violation(node, f"{function.name} returns None in place of a sample{hides}.", _RAISE)
            for handler in _handlers_to_the_end(function.body, True):
                problem = f"after this error {function.name} ends without a return, which returns None."
                yield Violation(handler, problem, "+ raise  # as the last line of this block")


def _makers(dataset: DatasetClass) -> Iterator[Function]:
    """Yield ``__getitem__``, and the methods whose result it returns unchanged."""
    todo = [dataset.methods[name] for name in ("__getitem__",) if name in dataset.methods]
    seen = set()
    while todo:
        function = todo.pop()
        seen.add(function.name)
        if not any(isinstance(node, ast.Return) and node.value is not None for node in in_scope(function)):
            continue  # abstract, or it only raises
        yield function
        for node in in_scope(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                called = dataset.methods.get(self_attribute(node.value.func))
                todo += [called] if called is not None and called.name not in seen else []


def _none_is_handled(script: Script, dataset: DatasetClass) -> bool:
    """True if a loader skips None: its collate function mentions it, or cannot be seen."""
    given = [loader.arguments["collate_fn"] for loader in dataset.loaders if "collate_fn" in loader.arguments]
    if any(
        not isinstance(node, ast.Name | ast.Lambda) or script.name(node) in script.imports.values() for node in given
    ):
        return True
    if any(loader.has_hidden_arguments and not given for loader in dataset.loaders):
        return True
    bodies: list[ast.AST] = [node for node in given if isinstance(node, ast.Lambda)]
    bodies += [function for name, function in script.functions.items() if "collate" in name]
    bodies += [script.functions[n.id] for n in given if isinstance(n, ast.Name) and n.id in script.functions]
    return any(is_none(node) for body in bodies for node in ast.walk(body))


def _handlers_to_the_end(body: list[ast.stmt], at_end: bool) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers after which a function ends without a return. ``at_end``: what follows the body ends it."""
    for i, statement in enumerate(body):
        ends = at_end and not _leaves(body[i + 1 :])
        if isinstance(statement, ast.Try):
            if ends and not _leaves(statement.finalbody):
                yield from (h for h in statement.handlers if not _leaves(h.body))
            for part in (statement.body, statement.orelse):
                yield from _handlers_to_the_end(part, ends)
        elif isinstance(statement, ast.If):
            for part in (statement.body, statement.orelse):
                yield from _handlers_to_the_end(part, ends)
        elif isinstance(statement, ast.With):
            yield from _handlers_to_the_end(statement.body, ends)


def _leaves(body: list[ast.stmt]) -> bool:
    """True if control never reaches the end of a block."""
    return any(_ends(statement) for statement in body)


def _ends(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
        return True
    if isinstance(statement, ast.If):
        return bool(statement.orelse) and _leaves(statement.body) and _leaves(statement.orelse)
    if isinstance(statement, ast.With):
        return _leaves(statement.body)
    if isinstance(statement, ast.Try):
        normal = _leaves(statement.body) or _leaves(statement.orelse)
        return _leaves(statement.finalbody) or (normal and all(_leaves(h.body) for h in statement.handlers))
    if isinstance(statement, ast.While):
        return is_true(statement.test) and not any(isinstance(n, ast.Break) for n in ast.walk(statement))
    if isinstance(statement, ast.Match):
        bare = [c for c in statement.cases if isinstance(c.pattern, ast.MatchAs) and c.pattern.pattern is None]
        return any(case.guard is None for case in bare) and all(_leaves(case.body) for case in statement.cases)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in EXITS
    return False
