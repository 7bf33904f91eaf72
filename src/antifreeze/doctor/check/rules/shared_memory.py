"""``small-shm`` and ``stale-shm``: /dev/shm, which torch's DataLoader sends every batch through."""

from __future__ import annotations

from collections.abc import Iterator

from antifreeze.doctor.check._facts import MIB
from antifreeze.doctor.check._rule import MachineContext, Rule, Violation, Weight

_DOCKER_NBYTES = 64 * MIB
_ROOMY_NBYTES = 2048 * MIB
_SAMPLE_NBYTES = 3 * 224 * 224
"""A common sample, to say what fits."""


def check_size(context: MachineContext) -> Iterator[Violation]:
    """Find a /dev/shm that is too small for the batches in flight."""
    size, free = context.facts.shm_nbytes, context.facts.shm_free_nbytes
    if size is None or free is None or context.loaders == []:
        return
    samples = sum(loader.batches_in_flight * loader.constant("batch_size", 1) for loader in context.loaders or ())
    if size <= _DOCKER_NBYTES or (size < _ROOMY_NBYTES and free < samples * _SAMPLE_NBYTES):
        needed = (
            f"these loaders keep up to {samples:,} samples there at once: {free // samples >> 10} KiB for each"
            if samples
            else "Docker provides 64 MiB by default"
        )
        problem = f"shared memory (/dev/shm) has {size // MIB} MiB, {free // MIB} of them free; {needed}."
        change = "docker run --shm-size=8g ...   (Kubernetes: an emptyDir with medium: Memory at /dev/shm)"
        yield Violation(None, problem, change)


def check_stale(context: MachineContext) -> Iterator[Violation]:
    """Find shared memory that dead processes left behind."""
    size, stale = context.facts.shm_nbytes, context.facts.shm_stale_nbytes
    if size is not None and context.loaders != [] and stale > max(64 * MIB, size // 10):
        problem = f"{stale // MIB} MiB of /dev/shm belong to torch processes that no longer exist."
        yield Violation(None, problem, "rm /dev/shm/torch_<pid>_* of these processes")


RULES = (
    Rule(
        code="small-shm",
        weight=Weight.FREEZE,
        section="shared-memory",
        explanation="torch's DataLoader sends every batch through it. When it is full, workers die of a bus error, or "
        "the loader waits forever.",
        check=check_size,
    ),
    Rule(
        code="stale-shm",
        weight=Weight.WASTE,
        section="what-doctor-check-finds",
        explanation="It is freed only when the files are removed.",
        check=check_stale,
    ),
)
