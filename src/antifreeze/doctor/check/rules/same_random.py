"""``same-random``: a random generator that every worker gets the same copy of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import self_name

_GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "torch.Generator"}


@rule("same-random", Weight.FREEZE, "Every worker draws the same numbers from a copy of it.")
def same_random(context: ScriptContext) -> Iterator[Violation]:
    """Find generators that are created in ``__init__`` and used for each sample.

    torch seeds ``random``, ``numpy.random`` (since 1.9) and itself differently in each worker, so these are fine.
    """
    script = context.script
    for dataset in context.datasets:
        nodes = (node for function in dataset.per_sample for node in ast.walk(function))
        asks_worker = any(script.name(node).endswith("get_worker_info") for node in nodes)
        if dataset.is_iterable or not dataset.can_be_in_workers or asks_worker:
            continue
        for name, (value, function) in dataset.initial_values().items():
            if not isinstance(value, ast.Call) or script.name(value.func) not in _GENERATORS:
                continue
            if dataset.is_used_per_sample(name) and not dataset.is_set_in_worker(name, script):
                what = f"{self_name(function)}.{name}"
                change = f"in __getitem__, instead of {what}:\n+ rng = np.random.default_rng((seed, index))"
                yield Violation(value, f"{what} is created in __init__.", change)
