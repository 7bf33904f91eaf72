"""``exit-in-worker``, ``stop-iteration``, ``local-error``, ``not-data``: wrong ways for the code of a sample to end.

Each of them replaces an error or a sample by something that the loader cannot tell from another event.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._loaders import DatasetClass
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import EXITS, Function, calls_in, in_scope


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
