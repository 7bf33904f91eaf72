"""``forked-openmp``: a forked worker gives torch more than one thread again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._script import calls_in
from antifreeze.doctor.check._values import number


def check(context: ScriptContext) -> Iterator[Violation]:
    """Find workers that raise torch's number of threads after the trainer's threads were lost in the fork."""
    script = context.script
    for loader in context.forking_loaders:
        functions = [f for dataset in context.datasets_of(loader) for f in dataset.per_sample]
        start = loader.arguments.get("worker_init_fn")
        if isinstance(start, ast.Name) and start.id in script.functions:
            functions.append(script.functions[start.id])
        for call in (c for function in functions for c in calls_in(ast.walk(function))):
            threads = next(iter(call.args), None)
            if script.name(call.func) == "torch.set_num_threads" and number(threads, script, context.facts) != 1:
                problem = "torch.set_num_threads is called in a forked worker."
                yield Violation(call, problem, f"- {ast.unparse(call)}")


RULE = Rule(
    code="forked-openmp",
    weight=Weight.FREEZE,
    section="fork",
    explanation="torch uses one thread in forked workers, because OpenMP waits forever with more.",
    check=check,
)
