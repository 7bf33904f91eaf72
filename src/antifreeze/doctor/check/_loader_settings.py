"""Rules about the arguments of a loader."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from antifreeze.doctor.check._datasets import DatasetClass
from antifreeze.doctor.check._facts import Facts
from antifreeze.doctor.check._finding import CheckFinding, Code
from antifreeze.doctor.check._loaders import Loader
from antifreeze.doctor.check._script import Script
from antifreeze.doctor.check._values import is_none, is_true, number

MANY = 100_000
"""So many batches of one sample each are worth a word even without workers."""


def batch_of_one(script: Script, loader: Loader, datasets: list[DatasetClass], facts: Facts) -> Iterator[CheckFinding]:
    """Find loaders that deliver one sample at a time."""
    arguments = loader.arguments
    if "batch_sampler" in arguments or "batch_size" in loader.sometimes or not arguments:
        return
    if "batch_size" not in arguments and (loader.open or "dataset" not in arguments or _batches_itself(script, loader)):
        return
    if "batch_size" in arguments and number(arguments["batch_size"], script, facts) != 1:
        return
    size = max((_length(script, d, facts) or 0 for d in datasets if loader in d.loaders), default=0)
    if not loader.has_workers and size < MANY:
        return
    written = "batch_size=1" if "batch_size" in arguments else "batch_size is not given, so it is 1"
    each = "every sample makes its own way between two processes, which costs about a millisecond"
    cost = (
        each
        if loader.has_workers
        else f"an epoch is {size:,} batches, and each costs about 50 us before your code runs"
    )
    node = arguments.get("batch_size", loader.call)
    yield script.finding(Code.BATCH_SIZE_1, node, f"{written}: {cost}.", "+ batch_size=64  # as many as fit")


def _batches_itself(script: Script, loader: Loader) -> bool:
    """Whether the loader or its dataset knows the batch size already, as those of litData and WebDataset do."""
    return script.name(loader.call.func).rpartition(".")[2] != "DataLoader"


def _length(script: Script, dataset: DatasetClass, facts: Facts) -> int | None:
    """Return the length that ``__len__`` states as a number."""
    body = dataset.methods["__len__"].body if "__len__" in dataset.methods else []
    last = body[-1] if body else None
    return number(last.value, script, facts) if isinstance(last, ast.Return) else None


def needs_workers(script: Script, loader: Loader) -> Iterator[CheckFinding]:
    """Find arguments that torch refuses without workers."""
    if loader.ours or loader.workers != 0:
        return
    for name in ("persistent_workers", "prefetch_factor"):
        value = loader.arguments.get(name)
        if value is None or is_none(value) or name in loader.sometimes:
            continue
        if is_true(value):
            reason = f"{name} needs workers, and num_workers is 0: torch raises a ValueError."
            yield script.finding(
                Code.NEEDS_WORKERS, value, reason, f"- {name}={ast.unparse(value)}\nor + num_workers=2"
            )


def many_workers(script: Script, loader: Loader, facts: Facts) -> Iterator[CheckFinding]:
    """Find more workers than cores."""
    if loader.workers is None or loader.workers <= facts.usable_cores:
        return
    cores = facts.usable_cores
    limit = "" if cores == facts.machine_cores else f" (of {facts.machine_cores} in the machine)"
    reason = (
        f"{loader.workers} workers on {cores} core{'s' * (cores > 1)}{limit}: they take turns, and each takes memory. "
        "torch warns about this too."
    )
    node = loader.arguments.get("num_workers", loader.call)
    yield script.finding(Code.MANY_WORKERS, node, reason, f"+ num_workers={max(1, cores)}")
