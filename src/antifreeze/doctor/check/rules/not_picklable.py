"""``not-picklable``: functions that cannot be sent to workers that are new interpreters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import self_name

_ARGUMENTS = ("collate_fn", "worker_init_fn", "dataset")


@rule("not-picklable", Weight.ERROR, "It cannot be pickled, and these workers are not forked.", section="notpicklable")
def not_picklable(context: ScriptContext) -> Iterator[Violation]:
    """Find lambdas and inner functions in datasets and in the arguments of loaders."""
    yield from _in_attributes(context)
    yield from _in_arguments(context)


def _in_attributes(context: ScriptContext) -> Iterator[Violation]:
    for dataset in context.datasets:
        pickles = any(loader.has_workers and loader.can_spawn for loader in dataset.loaders)
        if not pickles or "__getstate__" in dataset.methods:
            continue
        for name, (value, function) in dataset.initial_values().items():
            if isinstance(value, ast.Lambda):
                problem = f"{self_name(function)}.{name} is a lambda."
                yield Violation(value, problem, "make it a function at module level, or a method")


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
