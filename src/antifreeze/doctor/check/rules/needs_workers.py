"""``needs-workers``: arguments that torch refuses without workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._values import is_true


def check(context: ScriptContext) -> Iterator[Violation]:
    """Find ``persistent_workers`` and ``prefetch_factor`` next to ``num_workers=0``."""
    for loader in context.loaders:
        if loader.is_ours or loader.workers != 0:
            continue
        for name in ("persistent_workers", "prefetch_factor"):
            value = loader.arguments.get(name)
            if value is not None and is_true(value) and name not in loader.sometimes:
                change = f"- {name}={ast.unparse(value)}\nor + num_workers=2"
                yield Violation(value, f"{name} needs workers, and num_workers is 0.", change)


RULE = Rule(
    code="needs-workers",
    weight=Weight.ERROR,
    section="what-doctor-check-finds",
    explanation="torch raises a ValueError.",
    check=check,
)
