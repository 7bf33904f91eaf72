"""Rules about the code that makes one sample: what it returns, and how it can end."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._names import self_attribute
from antifreeze.doctor.check._script import Function, Script, calls_in, in_scope
from antifreeze.doctor.check._values import is_none, is_true

_EXITS = {"sys.exit", "os._exit", "exit", "quit", "os.abort"}


def none_samples(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find a ``__getitem__`` that gives None in place of a sample."""
    if dataset.iterable or _none_is_handled(script, dataset):
        return
    for function in _makers(dataset):
        reason = f"{function.name} gives None in place of a sample"
        for node in in_scope(function):
            if isinstance(node, ast.Return) and (node.value is None or is_none(node.value)):
                hides = (
                    " and hides the error" if any(isinstance(n, ast.ExceptHandler) for n in script.above(node)) else ""
                )
                yield script.finding(Code.NONE_SAMPLE, node, f"{reason}{hides}: {_NONE}", _RAISE)
        for handler in _handlers_to_the_end(function.body, True):
            text = f"after this error {function.name} ends without a return, which gives None: {_NONE}"
            yield script.finding(Code.NONE_SAMPLE, handler, text, "+ raise  # as the last line of this block")


_NONE = "collating fails on it, and the message names no sample."
_RAISE = "- return None\n+ raise  # or choose the good samples beforehand, in __init__"


def _makers(dataset: DatasetClass) -> Iterator[Function]:
    """Give ``__getitem__``, and the methods whose result it returns as it is."""
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
    """Whether some loader leaves out None: by a collate function that asks for it, or that cannot be seen."""
    given = [loader.arguments["collate_fn"] for loader in dataset.loaders if "collate_fn" in loader.arguments]
    if any(
        not isinstance(node, ast.Name | ast.Lambda) or script.name(node) in script.imports.values() for node in given
    ):
        return True
    if any(loader.open and not given for loader in dataset.loaders):
        return True
    bodies: list[ast.AST] = [node for node in given if isinstance(node, ast.Lambda)]
    bodies += [function for name, function in script.functions.items() if "collate" in name]
    bodies += [script.functions[n.id] for n in given if isinstance(n, ast.Name) and n.id in script.functions]
    return any(is_none(node) for body in bodies for node in ast.walk(body))


def _handlers_to_the_end(body: list[ast.stmt], at_end: bool) -> Iterator[ast.ExceptHandler]:
    """Give the handlers after which a function ends without a return. ``at_end``: what follows the body ends it."""
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
    """Whether control never comes out at the end of a block."""
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
        return any(_catches_all(case) for case in statement.cases) and all(_leaves(c.body) for c in statement.cases)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in _EXITS
    return False


def _catches_all(case: ast.match_case) -> bool:
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and case.guard is None


def bad_endings(script: Script, dataset: DatasetClass) -> Iterator[CheckFinding]:
    """Find what ends a worker or an epoch in place of an error, and what gets lost on its way to the trainer."""
    for function in dataset.per_sample:
        for call in calls_in(in_scope(function)):
            if (name := script.name(call.func)) in _EXITS and name not in script.functions:
                reason = (
                    f"{name}() ends the worker, not the training; the loader reports a lost worker without the reason."
                )
                change = f'- {name}(...)\n+ raise RuntimeError(f"...")'
                yield script.finding(Code.EXIT_IN_WORKER, call, reason, change)
        for node in in_scope(function):
            if isinstance(node, ast.Raise):
                yield from _raised(script, dataset, function, node)
            elif isinstance(node, ast.Return) and node.value is not None and function.name == "__getitem__":
                yield from _returned(script, node.value)


def _raised(script: Script, dataset: DatasetClass, function: Function, node: ast.Raise) -> Iterator[CheckFinding]:
    error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    name = error.id if isinstance(error, ast.Name) else ""
    if name == "StopIteration" and function.name != "__next__" and not dataset.iterable:
        reason = (
            "StopIteration out of __getitem__ ends the epoch early, without an error: the rest of the data is lost."
        )
        yield script.finding(Code.STOP_ITERATION, node, reason, "- raise StopIteration\n+ raise IndexError(index)")
    elif name in script.classes and script.is_local(script.classes[name]):
        reason = (
            f"{name} is defined inside a function and cannot be pickled: the error is lost, the loader waits for ever."
        )
        yield script.finding(Code.LOCAL_ERROR, node, reason, f"define class {name} at module level")


def _returned(script: Script, value: ast.expr) -> Iterator[CheckFinding]:
    parts = [value, *(value.elts if isinstance(value, ast.Tuple) else ())]
    parts += [value.body, value.orelse] if isinstance(value, ast.IfExp) else []
    for part in parts:
        if isinstance(part, ast.Lambda | ast.GeneratorExp):
            what = "a function" if isinstance(part, ast.Lambda) else "a generator"
            reason = (
                f"the sample holds {what}, which cannot be pickled: the batch is lost on its way, and the loader waits."
            )
            yield script.finding(Code.NOT_DATA, part, reason, "return data: tensors, arrays, numbers, texts")
