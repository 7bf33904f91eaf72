"""``many-workers`` and ``many-threads``: more workers or threads than cores."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.core import natural
from antifreeze.doctor.check._rule import MachineContext, Rule, ScriptContext, Violation, Weight


def check_workers(context: ScriptContext) -> Iterator[Violation]:
    """Find loaders with more workers than cores."""
    facts = context.facts
    cores = facts.usable_cores
    limit = "" if cores == facts.machine_cores else f" (of {facts.machine_cores} in the machine)"
    for loader in context.loaders:
        if loader.workers is not None and loader.workers > cores:
            problem = f"{loader.workers} workers on {cores} core{'s' * (cores > 1)}{limit}."
            node = loader.arguments.get("num_workers", loader.call)
            yield Violation(node, problem, f"+ num_workers={cores}")


def check_threads(context: MachineContext) -> Iterator[Violation]:
    """Find an OpenMP setting, or a CPU quota without one, that gives torch more threads than cores."""
    facts = context.facts
    change = f"export OMP_NUM_THREADS={facts.usable_cores}"
    threads = natural(facts.environment.get("OMP_NUM_THREADS", ""))
    if threads is not None:
        if threads > facts.machine_cores:
            yield Violation(None, f"OMP_NUM_THREADS={threads} on {facts.machine_cores} cores.", change)
    elif facts.cpu_quota is not None and facts.cpu_quota * 2 <= facts.cores:
        problem = (
            f"this container may use {facts.cpu_quota:g} of the {facts.cores} cores that programs see, and torch "
            "starts a thread for each."
        )
        yield Violation(None, problem, change)


MANY_WORKERS = Rule(
    code="many-workers",
    weight=Weight.WASTE,
    section="what-doctor-check-finds",
    explanation="They take turns, and each takes memory. torch warns about this too.",
    check=check_workers,
)
MANY_THREADS = Rule(
    code="many-threads",
    weight=Weight.WASTE,
    section="training-is-slow-but-the-loader-alone-is-fast",
    explanation="The threads take turns, or the kernel throttles all of them.",
    check=check_threads,
)
