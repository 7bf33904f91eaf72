"""``needs-workers``, ``batch-size-1``, ``many-workers``: arguments of a loader that fail, or waste time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._loaders import DatasetClass, Loader
from antifreeze.doctor.check._rule import ScriptContext, Violation, Weight, rule
from antifreeze.doctor.check._script import Script, is_true, number

_MANY_BATCHES = 100_000
"""Batches of one sample that are reported even without workers."""


@rule("needs-workers", Weight.ERROR, "torch raises a ValueError.")
def needs_workers(context: ScriptContext) -> Iterator[Violation]:
    """Find ``persistent_workers`` and ``prefetch_factor`` next to ``num_workers=0``."""
    for loader in context.loaders:
        if loader.is_ours or loader.workers != 0:
            continue
        for name in ("persistent_workers", "prefetch_factor"):
            value = loader.arguments.get(name)
            if value is not None and is_true(value) and name not in loader.sometimes:
                change = f"- {name}={ast.unparse(value)}\nor + num_workers=2"
                yield Violation(value, f"{name} needs workers, and num_workers is 0.", change)


@rule("batch-size-1", Weight.WASTE, "Larger batches spread this cost over more samples.")
def batch_size_1(context: ScriptContext) -> Iterator[Violation]:
    """Find loaders that deliver one sample at a time."""
    script, facts = context.script, context.facts
    for loader in context.loaders:
        if not _has_batch_of_one(script, loader, facts):
            continue
        size = max((_length(script, dataset, facts) or 0 for dataset in context.datasets_of(loader)), default=0)
        if not loader.has_workers and size < _MANY_BATCHES:
            continue
        given = loader.arguments.get("batch_size")
        written = "batch_size=1" if given is not None else "batch_size is not given, so it is 1"
        cost = (
            "every sample is sent between two processes on its own, which costs about a millisecond"
            if loader.has_workers
            else f"an epoch is {size:,} batches, and each costs about 50 us before your code runs"
        )
        yield Violation(given or loader.call, f"{written}: {cost}.", "+ batch_size=64  # as many as fit")


def _has_batch_of_one(script: Script, loader: Loader, facts: Facts) -> bool:
    arguments = loader.arguments
    if "batch_sampler" in arguments or "batch_size" in loader.sometimes or not arguments:
        return False
    if "batch_size" in arguments:
        return number(arguments["batch_size"], script, facts) == 1
    # Loaders of litData and WebDataset, or their datasets, know the batch size already.
    batches_itself = script.name(loader.call.func).rpartition(".")[2] != "DataLoader"
    return not (loader.has_hidden_arguments or "dataset" not in arguments or batches_itself)


def _length(script: Script, dataset: DatasetClass, facts: Facts) -> int | None:
    """Return the length that ``__len__`` states as a number."""
    body = dataset.methods["__len__"].body if "__len__" in dataset.methods else []
    last = body[-1] if body else None
    return number(last.value, script, facts) if isinstance(last, ast.Return) else None


@rule("many-workers", Weight.WASTE, "They take turns, and each takes memory. torch warns about this too.")
def many_workers(context: ScriptContext) -> Iterator[Violation]:
    """Find loaders with more workers than cores."""
    facts = context.facts
    cores = facts.usable_cores
    limit = "" if cores == facts.machine_cores else f" (of {facts.machine_cores} in the machine)"
    for loader in context.loaders:
        if loader.workers is not None and loader.workers > cores:
            problem = f"{loader.workers} workers on {cores} core{'s' * (cores > 1)}{limit}."
            node = loader.arguments.get("num_workers", loader.call)
            yield Violation(node, problem, f"+ num_workers={cores}")
