"""``few-files`` and ``little-memory``: limits that a job's workers would exceed."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.check._facts import MIB
from antifreeze.doctor.check._rule import MachineContext, Rule, Violation, Weight

_MIN_FILES = 1024
_TENSORS_PER_BATCH = 4
"""A guess: each tensor is a descriptor while it waits."""
_SPAWNED_NBYTES = 150 * MIB
"""Memory of a worker that is not forked with torch imported, as measured."""


def check_files(context: MachineContext) -> Iterator[Violation]:
    """Find a low limit of open files."""
    if context.loaders == []:
        return
    needed = sum(loader.batches_in_flight * _TENSORS_PER_BATCH for loader in context.loaders or ())
    if context.facts.open_files < max(_MIN_FILES, 2 * needed):
        problem = f"at most {context.facts.open_files:,} files may be open (ulimit -n)."
        yield Violation(None, problem, f"ulimit -n {max(4096, 4 * needed)}")


def check_memory(context: MachineContext) -> Iterator[Violation]:
    """Find less memory than workers that are not forked need."""
    workers = sum(loader.workers or 0 for loader in context.loaders or () if loader.can_spawn)
    limit_nbytes = context.facts.memory_nbytes
    if limit_nbytes is not None and workers * _SPAWNED_NBYTES * 2 > limit_nbytes:
        problem = (
            f"{workers} workers that are not forked take about {workers * _SPAWNED_NBYTES // MIB:,} MiB with torch "
            f"alone, and a copy of the dataset each; this job may use {limit_nbytes // MIB:,} MiB."
        )
        yield Violation(None, problem, "use fewer workers, or give the job more memory")


RULES = (
    Rule(
        code="few-files",
        weight=Weight.ERROR,
        section="unreadablefile",
        explanation="torch's DataLoader needs one for each tensor in flight, and fails with `Too many open files` or "
        "an EOFError.",
        check=check_files,
    ),
    Rule(
        code="little-memory",
        weight=Weight.ERROR,
        section="out-of-memory",
        explanation="The kernel kills a process of the job when it runs out.",
        check=check_memory,
    ),
)
