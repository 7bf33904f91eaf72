"""``cuda-in-worker``: a forked worker puts tensors on the GPU."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._script import Script, calls_in
from antifreeze.doctor.check._values import text


def check(context: ScriptContext) -> Iterator[Violation]:
    """Find tensors that forked workers put on the GPU."""
    for loader in context.forking_loaders:
        for function in (f for dataset in context.datasets_of(loader) for f in dataset.per_sample):
            for call in calls_in(ast.walk(function)):
                if _uses_cuda(call, context.script):
                    change = "return CPU tensors, and in the training loop:\n+ batch = batch.to(device)"
                    yield Violation(call, "a forked worker uses CUDA.", change)


def _uses_cuda(call: ast.Call, script: Script) -> bool:
    """True for ``x.cuda()``, ``x.to("cuda")`` and ``f(device="cuda")``."""
    attribute = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    devices = [k.value for k in call.keywords if k.arg == "device"]
    is_named = any((text(given, script) or "").startswith("cuda") for given in (*call.args, *devices))
    return attribute == "cuda" or (is_named and (attribute == "to" or bool(devices)))


RULE = Rule(
    code="cuda-in-worker",
    weight=Weight.ERROR,
    section="what-doctor-check-finds",
    explanation="CUDA cannot be used in a forked worker once the trainer has used it.",
    check=check,
)
