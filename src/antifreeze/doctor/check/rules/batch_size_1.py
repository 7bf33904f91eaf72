"""``batch-size-1``: a loader that delivers one sample at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._rule import Rule, ScriptContext, Violation, Weight
from antifreeze.doctor.check._script import Script
from antifreeze.doctor.check._values import number

_MANY_BATCHES = 100_000
"""Batches of one sample that are reported even without workers."""


def check(context: ScriptContext) -> Iterator[Violation]:
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


RULE = Rule(
    code="batch-size-1",
    weight=Weight.WASTE,
    section="what-doctor-check-finds",
    explanation="Larger batches spread this cost over more samples.",
    check=check,
)
